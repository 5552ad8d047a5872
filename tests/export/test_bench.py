"""How long and how often passes are measured, and what is written of it."""

import json

import numpy as np
import pytest

from export import bench as module
from export.bench import Point, Timing, grid, measure, prepare, write_times
from export.cli import main
from export.files import ExportError
from export.runtimes import engines
from export.runtimes.source import random_source


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
    sizes = {"batch": 2, "tokens": 1, "context": 32, "source": None}
    point = sizes | {"phase": "decode", "latency_ms": [[1.0, 2.5], [3.0]]}
    assert json.loads(path.read_text()) == {"backend": "onnxruntime", "gpu": {}, "points": [point]}
    with pytest.raises(ExportError, match=r"exportTimes=.*times\.json/below: cannot be written, .*; give another file"):
        write_times(path / "below", timings, {})


QUICK = ["--rounds", "3", "--warmUp", "0", "--batch", "1"]


def _benched(made, path, *more):
    """(what `bench` told, [phase, tokens, context, source] of each point that it wrote)."""
    assert main(["bench", "--build", str(made.folder), *QUICK, *more, "--exportTimes", str(path)]) == 0
    points = json.loads(path.read_text())["points"]
    assert all(sample > 0 for point in points for turn in point["latency_ms"] for sample in turn)
    return [tuple(point[key] for key in ("phase", "tokens", "context", "source")) for point in points]


def test_an_encoder_is_timed_and_the_decoder_after_its_source(pair, tmp_path, capsys):
    found = _benched(pair, tmp_path / "times.json", "--prompt", "8", "--source", "5", "40")
    after = [(16, 5), (16, 40), (32, 5), (32, 40)]
    decodes = [(("decode", 1, *sizes), ("prefill", 8, *sizes)) for sizes in after]
    assert found == [
        ("encode", 5, None, None),
        ("encode", 40, None, None),
        *(point for two in decodes for point in two),
    ]
    header, _, first, *_ = capsys.readouterr().out.splitlines()
    assert header.split()[:5] == ["pass", "batch", "tokens", "context", "source"]
    assert first.split()[:3] == ["encode", "1", "5"]


def test_a_source_has_a_default_length(alone, listener, pair, tmp_path, capsys):
    assert _benched(alone, tmp_path / "a.json") == [("encode", 96, None, None)]  # as many as there are positions
    assert "context" not in capsys.readouterr().out
    sizes = [("encode", 6, None, None), ("decode", 1, 16, 6), ("prefill", 16, 16, 6)]
    assert _benched(listener, tmp_path / "b.json") == sizes
    assert {point.source for point in grid(pair, [1])} == {None, 128}


@pytest.mark.parametrize(
    ("kind", "option", "message"),
    [
        ("tiny", ["--source", "8"], "source=8: tiny-decoder has no encoder that would read it; leave it out"),
        ("alone", ["--prompt", "8"], "prompt=8: bert-base is an encoder, which continues nothing; give --source"),
        ("alone", ["--source", "8", "97"], "source=97: bert-base has positions for 96; give at most that many"),
        ("listener", ["--source", "8"], "source=8: whisper-tiny always hears 6 tokens; leave it out"),
    ],
)
def test_sizes_that_a_model_does_not_have_are_refused(kind, option, message, request, capsys):
    assert main(["bench", "--build", str(request.getfixturevalue(kind).folder), *QUICK, *option]) == 2
    told = capsys.readouterr()
    assert message in told.err and told.err.count("\n") == 1
    assert told.out == ""


@pytest.mark.parametrize(("kind", "source"), [("pair", 9), ("listener", 6)])
def test_a_timed_pass_writes_the_keys_of_its_source(kind, source, request):
    """What is bound is what `run` computes: the outputs of a timed encoder pass are those of its random source."""
    made = request.getfixturevalue(kind)
    engine = engines(made, "onnxruntime")(16)
    arrays = random_source(made, 2, source)
    want = engine.encoder.run(*arrays)
    bound = engine.encoder.prepare(2, source)
    bound()
    found = bound.__self__.made
    assert set(found) == set(want)
    for name, array in want.items():
        assert np.abs(array).max() > 0
        np.testing.assert_array_equal(found[name], array)


def test_a_timed_decoder_pass_reads_a_source_of_its_length(pair, monkeypatch):
    engine, read = engines(pair, "onnxruntime")(32), []
    encode = engine.encode
    monkeypatch.setattr(engine, "encode", lambda *arrays: read.append(arrays[1].shape) or encode(*arrays))
    for run in prepare(pair, lambda capacity: engine, [Point(3, 1, 32, 11), Point(1, 4, 32, 7)]):
        run()
    assert read == [(3, 11), (1, 7)]


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
