"""How long and how often passes are measured, and what is written of it."""

import json

import pytest

from export import bench as module
from export.bench import Point, Timing, measure, write_times
from export.cli import main
from export.files import ExportError


class Clock:
    """A clock that only a pass moves."""

    def __init__(self):
        self.now = 0.0

    def perf_counter(self):
        return self.now

    def passing(self, seconds):
        def run():
            self.now += seconds

        return run


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


def test_rounds_end_measuring(clock):
    short, long = measure([clock.passing(0.03125), clock.passing(2.0)], rounds=4)
    assert [len(turns) for turns in (short, long)] == [4, 4]
    assert all(turn == (0.03125, 0.03125) for turn in short)  # until more than 50 ms are measured
    assert all(turn == (2.0,) for turn in long)


def test_no_round_begins_after_the_time_is_over(clock):
    (turns,) = measure([clock.passing(2.0)], rounds=100, seconds=9.0)  # a round takes 4 s, its warm-up among it
    assert len(turns) == 3


def test_warm_up_is_unmeasured(clock):
    for warm_up, seconds in ((0.0, 2.0), (3.0, 4.0), (5.0, 6.0)):
        before = clock.now
        (turns,) = measure([clock.passing(2.0)], rounds=1, warm_up=warm_up)
        assert turns == [(2.0,)]
        assert clock.now - before == 2.0 + seconds


def test_duration_and_iterations_go_on_until_every_pass_has_enough(clock):
    turns = measure([clock.passing(0.25), clock.passing(1.0)], rounds=1, seconds=0.0, duration=3.0)
    assert [len(t) for t in turns] == [12, 12]  # twelve quarters of a second
    turns = measure([clock.passing(0.03125), clock.passing(1.0)], rounds=1, seconds=0.0, iterations=7)
    assert [sum(map(len, t)) for t in turns] == [14, 7]


def test_every_sample_is_written_in_ms(tmp_path):
    path = tmp_path / "times.json"
    timings = [Timing(Point(2, 1, 32), ((0.001, 0.0025), (0.003,)))]
    write_times(path, timings, {"backend": "onnxruntime", "gpu": {}})
    point = {"batch": 2, "tokens": 1, "context": 32, "phase": "decode", "latency_ms": [[1.0, 2.5], [3.0]]}
    assert json.loads(path.read_text()) == {"backend": "onnxruntime", "gpu": {}, "points": [point]}
    with pytest.raises(ExportError, match=r"exportTimes=.*times\.json/below: cannot be written, .*; give another file"):
        write_times(path / "below", timings, {})


def test_bench_exports_what_it_tells(tiny, tmp_path, capsys):
    path = tmp_path / "times.json"
    quick = ["--rounds", "3", "--warmUp", "0", "--batch", "1", "--prompt", "8"]
    assert main(["bench", "--build", str(tiny.folder), *quick, "--exportTimes", str(path)]) == 0
    told, found = capsys.readouterr().out, json.loads(path.read_text())
    assert all(name in told for name in ("p50", "p90", "p99"))
    assert (found["backend"], found["precision"], found["gpu"]) == ("onnxruntime", "fp32", {})
    shapes = [(point["batch"], point["tokens"], point["context"]) for point in found["points"]]
    assert shapes == [(1, 1, 16), (1, 8, 16), (1, 1, 32), (1, 8, 32)]
    for point in found["points"]:
        assert len(point["latency_ms"]) == 3
        assert all(sample > 0 for turn in point["latency_ms"] for sample in turn)
