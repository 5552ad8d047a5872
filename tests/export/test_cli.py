"""The `export` command as a user types it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from export.cli import main

SCRIPTS = os.path.dirname(sys.executable)


def _run(*command: str, cwd=None) -> subprocess.CompletedProcess:
    env = os.environ | {"PATH": f"{SCRIPTS}:{os.environ['PATH']}"}
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=env, check=False)


@pytest.mark.parametrize(
    "command",
    [("env", "export"), ("env", "archexport"), (sys.executable, "-m", "export")],
    ids=["env", "twin", "module"],
)
def test_help_of_every_way_to_start_it(command, tmp_path):
    if command[0] == "env" and not os.path.exists(os.path.join(SCRIPTS, "archexport")):
        pytest.skip("the console scripts are not installed: pip install -e .")
    build = _run(*command, "build", "--help", cwd=tmp_path if command[0] == "env" else None)
    assert build.returncode == 0, build.stderr
    assert "--precision" in build.stdout
    whole = _run(*command, "--help", cwd=tmp_path if command[0] == "env" else None)
    assert whole.returncode == 0
    assert "shell's own builtin" in whole.stdout


def test_a_shells_export_does_nothing_which_is_why_the_readme_warns():
    done = _run("bash", "-c", "export build")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_help_does_not_wait_for_torch():
    code = "import sys; import export.cli; export.cli.parser().format_help(); print('torch' in sys.modules)"
    assert _run(sys.executable, "-c", code).stdout.strip() == "False"


@pytest.mark.parametrize("package", ["onnx", "torch", "tqdm"])
def test_a_missing_extra_is_one_line(package, tmp_path):
    argv = ["build", "--preset", "tiny-decoder", "--out", str(tmp_path / "b")]
    code = f"import sys; sys.modules[{package!r}] = None; from export.cli import main; sys.exit(main({argv!r}))"
    done = _run(sys.executable, "-c", code)
    assert done.returncode == 2
    assert done.stderr == f'export: {package}: not installed; pip install "archcalc[export]"\n'


def test_build_verify_bench_in_a_row(tmp_path, capsys):
    out = str(tmp_path / "b")
    assert main(["build", "--preset", "tiny-decoder", "--precision", "fp16", "--capacity", "16,32", "--out", out]) == 0
    told = capsys.readouterr().out
    assert "tiny-decoder in fp16, random weights (seed 0), caches of 16, 32 tokens" in told
    assert "weights.bin: 250,496 bytes" in told
    assert main(["verify", "--build", out]) == 0
    told = capsys.readouterr().out
    assert " of 84" in told  # tokens of the graph with 16 slots; fp16 may have ties
    assert " of 168" in told
    assert (tmp_path / "b-verify.json").is_file()
    assert main(["bench", "--build", out, "--rounds", "3", "--prompt", "8"]) == 0
    table = capsys.readouterr().out
    assert "p99" in table
    assert table.count("decode") == table.count("prefill") == 4


def test_verify_of_a_wrong_build_exits_with_1(tiny, tmp_path, capsys):
    argv = ["verify", "--build", str(tiny.folder), "--json", str(tmp_path / "report.json"), "--rtol", "1e-12"]
    assert main(argv) == 1
    assert "DIFFERS: logits differ by" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["build", "--preset", "llama3-8"], "did you mean llama3-8b?"),
        (["build", "--preset", "llama3.1-405b"], "1.623 TB to write,"),
        (["build", "--preset", "tiny-decoder", "--weights", "nowhere.gguf"], "weights=nowhere.gguf: no such file"),
        (["build", "--preset", "tiny-decoder", "--capacity", "4096"], "max_position_embeddings=256"),
        (["build", "--set", "num_key_value_heads=5"], "num_key_value_heads=5"),
        (["verify", "--build", "nowhere"], "nowhere/manifest.json"),
        (["bench", "--build", "nowhere"], "nowhere/manifest.json"),
        (["compare", "--build", "nowhere"], "nowhere/manifest.json"),
        (["generate", "--build", "nowhere", "--prompt", "x"], "nowhere/manifest.json"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(argv, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(argv) == 2
    told = capsys.readouterr()
    assert message in told.err
    assert told.err.count("\n") == 1
    assert told.out == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", [["check"], ["compare"], ["bench"]])
def test_tensorrt_without_a_gpu_is_told_at_once(command, tiny, capsys, monkeypatch):
    monkeypatch.setattr("export.runtimes.tensorrt_.gpu", lambda: None)
    which = ["--preset", "tiny-decoder"] if command == ["check"] else ["--build", str(tiny.folder)]
    assert main([*command, *which, "--backend", "tensorrt"]) == 2
    told = capsys.readouterr()
    assert "no NVIDIA driver: build works here, running needs a GPU" in told.err
    assert told.err.count("\n") == 1


def test_generate_needs_a_tokenizer(tiny, capsys):
    assert main(["generate", "--build", str(tiny.folder), "--prompt", "hello"]) == 2
    assert "has no tokenizer" in capsys.readouterr().err


@pytest.mark.parametrize(
    "argv",
    [
        ["bench", "--batch", "0"],
        ["bench", "--rounds", "-1"],
        ["build", "--capacity", "many"],
        ["build", "--precision", "fp7"],
        ["fly"],
    ],
)
def test_bad_options_are_told_by_argparse(argv, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(argv)
    assert stopped.value.code == 2
    told = capsys.readouterr().err
    assert told.startswith("export") and told.endswith("--help\n")
    assert told.count("\n") == 1
