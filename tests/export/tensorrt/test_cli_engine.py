"""The options in trtexec's words: what they become, and one line for what is wrong with them."""

import subprocess
from pathlib import Path

import pytest

from export import gpu_state
from export.cli import main, parser
from export.cli_engine import engine_settings, layer_tables, measuring

BUILD = ["build", "--preset", "tiny-decoder", "--backend", "tensorrt"]


def test_engine_options_become_settings():
    shapes = [
        "--minShapes=input_ids:1x1",
        "--optShapes",
        "input_ids:1x128",
        "--maxShapes=input_ids:8x512,logit_indices:8x1",
    ]
    more = ["--memPoolSize=workspace:512", "--builderOptimizationLevel=3", "--stripWeights", "--timingCacheFile", "t"]
    args = parser().parse_args([*BUILD, *shapes, *more, "--compute-capability", "sm_120"])
    assert engine_settings(args) == {
        "compute_capability": "sm_120",
        "shapes": {
            "minShapes": {"input_ids": (1, 1)},
            "optShapes": {"input_ids": (1, 128)},
            "maxShapes": {"input_ids": (8, 512), "logit_indices": (8, 1)},
        },
        "workspace_bytes": 512 * 2**20,
        "builder_optimization_level": 3,
        "strip_weights": True,
        "timing_cache": Path("t"),
    }
    assert engine_settings(parser().parse_args(BUILD)) == {}
    assert engine_settings(parser().parse_args([*BUILD, "--strip-weights"])) == {"strip_weights": True}


@pytest.mark.parametrize(("text", "size"), [("512B", 512), ("3K", 3072), ("1M", 2**20), ("2G", 2**31), ("1", 2**20)])
def test_units_of_a_pool(text, size):
    args = parser().parse_args([*BUILD, f"--memPoolSize=workspace:{text}"])
    assert engine_settings(args)["workspace_bytes"] == size


@pytest.mark.parametrize(
    ("option", "told"),
    [
        ("--minShapes=input_ids", "give each input once with sizes from 1"),
        ("--minShapes=input_ids:0x1", "give each input once"),
        ("--optShapes=input_ids:1xx2", "give each input once"),
        ("--maxShapes=input_ids:1x2,input_ids:1x3", "give each input once"),
        ("--maxShapes=input_ids:1x9999999999999", "give each input once"),
        ("--memPoolSize=512", "give workspace:SIZE in MiB"),
        ("--memPoolSize=workspace:0", "give workspace:SIZE in MiB"),
        ("--memPoolSize=dlaSRAM:1", "give workspace:SIZE in MiB"),
        ("--builderOptimizationLevel=6", "give a whole number from 0 (a fast build) to 5"),
    ],
)
def test_bad_values_are_one_line(option, told, capsys):
    with pytest.raises(SystemExit) as stopped:
        main([*BUILD, option])
    error = capsys.readouterr().err
    assert stopped.value.code == 2
    assert error.count("\n") == 1 and told in error and option.split("=")[0] in error


@pytest.mark.parametrize("option", ["--warmUp=-1", "--warmUp=nan", "--duration=inf", "--duration=x", "--iterations=0"])
def test_bad_measuring_is_one_line(option, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["bench", option])
    error = capsys.readouterr().err
    assert stopped.value.code == 2
    assert error.count("\n") == 1 and option.split("=")[0] in error


def test_an_option_that_would_do_nothing_is_refused(tmp_path, capsys):
    build = ["build", "--preset", "tiny-decoder", "--out", str(tmp_path / "b"), "--stripWeights"]
    assert main(build) == 2
    assert "backend=onnxruntime: builds no engine that has strip_weights; --backend tensorrt" in capsys.readouterr().err
    assert not (tmp_path / "b").exists()
    for option in ("--dumpProfile", "--noCudaGraph", "--no-cuda-graph"):
        assert main(["bench", "--build", str(tmp_path), option]) == 2
        assert "backend=onnxruntime has none; use it with --backend tensorrt" in capsys.readouterr().err


def test_stripping_without_a_gpu_is_one_line(tmp_path, capsys):
    out = ["--precision", "fp16", "--capacity", "16", "--out", str(tmp_path / "b"), "--stripWeights"]
    assert main([*BUILD, *out]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("export: stripWeights=True: tensorrt_rtx ") and "without a GPU" in error


def test_what_measuring_options_mean():
    def of(*options):
        return measuring(parser().parse_args(["bench", *options]))

    assert of() == {"rounds": 30, "duration": 0.0, "iterations": 1}
    assert of("--warmUp", "200", "--duration", "3") == {"rounds": 3, "warm_up": 0.2, "duration": 3.0, "iterations": 1}
    assert of("--rounds", "5", "--iterations", "10") == {"rounds": 5, "duration": 0.0, "iterations": 10}


def test_tables_of_slow_layers(monkeypatch):
    from export.bench import Point

    times = {f"layer {i}": i / 1000 for i in range(1, 25)}

    class Engine:
        def layer_times(self, batch, tokens, start):
            assert (batch, tokens, start) == (2, 1, 31)
            return times

    monkeypatch.setattr("export.runtimes.engines", lambda build, backend, cuda_graph: lambda context: Engine())
    text = "\n".join(layer_tables(None, [Point(2, 1, 32)]))
    assert "decode, batch 2, 1 tokens, context 32:" in text
    lines = [line for line in text.splitlines() if "layer " in line and "ms" in line]
    assert lines[0].split()[-3:] == ["24", "ms", "8.0%"][-3:] or "24 ms" in lines[0]
    assert len(lines) == 20 and "layer 5 " in lines[-1]
    rest = next(line for line in text.splitlines() if "4 more" in line)
    assert "10 ms" in rest and "3.3%" in rest  # 1 + 2 + 3 + 4 of 300 ms


ANSWER = (
    "Fake 9000, 580.1, P0, Enabled, [N/A], 1980 MHz, 1980 MHz, 2619 MHz, "
    "75.20 W, 700.00 W, 33, 0 MiB, 143771 MiB, 0x0\n"
)


def test_state_of_a_gpu(monkeypatch):
    asked = []

    def answered(command, **how):
        asked.append((command, how))
        return subprocess.CompletedProcess(command, 0, ANSWER, "")

    monkeypatch.setattr(subprocess, "run", answered)
    state = gpu_state.gpu_state("GPU-of-tests")
    assert (state["name"], state["clocks.sm"], state["temperature.gpu"]) == ("Fake 9000", "1980 MHz", "33")
    assert tuple(state) == gpu_state.FIELDS
    ((command, how),) = asked
    assert command[:2] == ["nvidia-smi", "--id=GPU-of-tests"] and how["timeout"] == gpu_state.SECONDS
    assert not {"-r", "-mig", "-pm", "-lgc"} & set(command)  # it reads, and sets nothing


@pytest.mark.parametrize(
    "failure",
    [
        FileNotFoundError("nvidia-smi"),
        subprocess.TimeoutExpired("nvidia-smi", 10),
        subprocess.CalledProcessError(9, "x"),
    ],
)
def test_no_state_without_nvidia_smi(monkeypatch, failure):
    def fails(*command, **how):
        raise failure

    monkeypatch.setattr(subprocess, "run", fails)
    assert gpu_state.gpu_state("GPU-of-tests") == {}


@pytest.mark.parametrize("answer", ["", "No devices were found\n"])
def test_no_state_from_another_answer(monkeypatch, answer):
    monkeypatch.setattr(subprocess, "run", lambda command, **how: subprocess.CompletedProcess(command, 0, answer, ""))
    assert gpu_state.gpu_state("GPU-of-tests") == {}
