"""The command line: what it prints, what it refuses, and that a refusal is one line and exit code 2."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from archcalc.cli import main
from archcalc.cost import parameters
from archcalc.derivation import derivation
from archcalc.memory import Paged
from archcalc.presets import names, preset, source
from archcalc.render import render, render_training
from archcalc.report import report
from archcalc.request import Request
from archcalc.training import Step, training

ROOT = Path(__file__).resolve().parents[2]
REFUSED = {
    "unknown preset": ("report --preset llama3-8", "preset='llama3-8': .*did you mean llama3-8b?"),
    "unknown preset to derive": ("derive --preset gtp2", "did you mean gpt2?"),
    "unknown device": ("report --preset gpt2 --device h10", "device='h10': unknown (did you mean h100-sxm?)"),
    "bad precision": ("report --preset gpt2 --precision bf8", "precision='bf8': not understood; use one of fp32"),
    "bad kv precision": ("report --preset gpt2 --kv-precision x", "precision='x': not understood"),
    "no rate": ("report --preset gpt2 --precision fp8 --device a100-80gb-sxm", "has no fp8 rate"),
    "set without value": ("report --preset gpt2 --set n_layer", "'n_layer': not an override"),
    "set of an unknown key": ("report --preset gpt2 --set n_layerz=3", "n_layerz=3: not understood"),
    "set that breaks a rule": ("report --preset gpt2 --set n_head=5", "num_attention_heads=5 with hidden_size=768"),
    "missing file": ("report --config no/such/config.json", "cannot be read, No such file"),
    "batch of none": ("report --preset gpt2 --batch 0", "batch=0: must be a whole number"),
    "negative context": ("report --preset gpt2 --context -3", "context=-3: must be a whole number"),
    "beyond learned positions": ("report --preset gpt2 --context 1025", "max_position_embeddings=1024"),
    "prompt beyond learned positions": ("report --preset gpt2 --prompt 1025", "max_position_embeddings=1024"),
    "batch that is no number": ("report --preset gpt2 --batch many", "argument --batch: invalid int value: 'many'"),
    "no model": ("report", "one of the arguments --preset --config is required"),
    "two models": ("report --preset gpt2 --config x", "not allowed with argument --preset"),
    "unknown format": ("report --preset gpt2 --format xml", "argument --format: invalid choice: 'xml'"),
    "causal and dense": ("report --preset gpt2 --causal --dense", "not allowed with argument --causal"),
    "unknown unit": ("report --preset gpt2 --kv-bytes 3GIB", "unit='GIB': not understood; use one of B"),
    "room twice": ("report --preset gpt2 --kv-bytes 3GB --kv-blocks 2", "not allowed with argument --kv-bytes"),
    "logical blocks": ("report --preset gpt2 --kv logical --tp 2", "kv='logical' with --tp: it is for --kv reserved"),
    "no ranks": ("report --preset gpt2 --tp 0", "tp=0: must be a whole number"),
    "ranks without heads": ("report --preset gpt2 --tp 5", "tp=5: must divide num_attention_heads=12"),
    "unknown form": ("report --preset gpt2 --latent both", "latent='both': not understood"),
    "unknown quantity": (
        "report --preset gpt2 --explain size",
        "explain='size': not understood; use one of param",
    ),
    "unknown oracle": ("report --preset gpt2 --against vllm", "argument --against: invalid choice: 'vllm'"),
    "unknown policy": ("training --preset gpt2 --policy fp8", "policy='fp8': not understood"),
    "too many tokens": ("training --preset gpt2 --tokens 1025", "max_position_embeddings=1024"),
    "unknown option": ("presets --all", "unrecognized arguments: --all"),
    "unknown command": ("weigh --preset gpt2", "invalid choice: 'weigh'"),
    "no command": ("", "the following arguments are required: COMMAND"),
}


def shell(arguments: str, **other) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "archcalc", *arguments.split()]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, encoding="utf-8", timeout=60, **other)


def printed(capsys, arguments: str) -> str:
    assert main(arguments.split()) == 0
    found = capsys.readouterr()
    assert found.err == ""
    return found.out.removesuffix("\n")


def refusal(capsys, arguments: list[str]) -> str:
    """The one line of a request that is refused, in this process."""
    try:
        code = main(arguments)
    except SystemExit as end:  # argparse
        code = end.code
    found = capsys.readouterr()
    assert code == 2
    assert found.out == ""
    assert found.err.count("\n") == 1
    assert found.err.endswith("\n")
    return found.err


@pytest.mark.parametrize("style", ["table", "markdown", "json"])
@pytest.mark.parametrize("name", ["gpt2", "llama3-8b", "mixtral-8x7b", "transformer-base"])
def test_report_prints_the_report(capsys, name, style):
    text = printed(capsys, f"report --preset {name} --format {style}")
    assert text == render(report(preset(name)), style)


def test_every_option_of_a_report_reaches_it(capsys):
    options = "--batch 3 --prompt 20 --context 30 --precision int8 --kv-precision fp8 --device l4 --dense --last-logits"
    asked = Request(3, 20, 30, "int8", "fp8", "l4", dense=True, last_logits=True)
    found = json.loads(printed(capsys, f"report --preset tiny-decoder {options} --format json"))
    assert found == report(preset("tiny-decoder"), asked)
    for option in ("--dense", "--last-logits", "--batch 3", "--prompt 20", "--context 30", "--device l4"):
        fewer = json.loads(printed(capsys, f"report --preset tiny-decoder {options.replace(option, '')} --format json"))
        assert fewer != found, option
    assert printed(capsys, "report --preset gpt2 --causal") == printed(capsys, "report --preset gpt2")


def test_every_option_of_a_reserved_cache_reaches_it(capsys):
    options = "--context 300 --block-size 32 --tp 2 --windowed-as-full --prefill-chunk 99 --kv-bytes 1.5MB"
    engine = Paged(32, 2, windowed_as_full=True, prefill_chunk=99, room=1_500_000)
    found = json.loads(printed(capsys, f"report --preset llama3-8b {options} --format json"))
    assert found == report(preset("llama3-8b"), Request(context=300, paged=engine))
    found = json.loads(printed(capsys, "report --preset llama3-8b --kv reserved --kv-blocks 7 --format json"))
    assert found == report(preset("llama3-8b"), Request(paged=Paged(room_blocks=7)))
    assert printed(capsys, "report --preset gpt2 --kv logical") == printed(capsys, "report --preset gpt2")


@pytest.mark.parametrize("style", ["table", "markdown", "json"])
def test_explanations_and_macs(capsys, style):
    text = printed(capsys, f"report --preset llama3-8b --explain decode --macs --format {style}")
    assert text == render(report(preset("llama3-8b"), Request(explain="decode", macs=True)), style)


@pytest.mark.parametrize("style", ["table", "markdown", "json"])
def test_training_prints_the_step(capsys, style):
    options = "--batch 2 --tokens 64 --source 32 --policy fp32 --optimizer sgd --recompute full --dropout"
    text = printed(capsys, f"training --preset transformer-base {options} --format {style}")
    step = Step(2, 64, 32, "fp32", "sgd", "full", dropout=True)
    assert text == render_training(training(preset("transformer-base"), step), style)


def test_json_has_parts_that_add_up(capsys):
    found = json.loads(printed(capsys, "report --preset mixtral-8x7b --format json --batch 4"))
    parts = found["parameters"]["parts"]
    assert sum(part["total"] for part in parts) == found["parameters"]["total"] == 46_702_792_704
    for run in found["passes"]:
        assert sum(part["flops"] for part in run["parts"]) == run["flops"] > 0
        assert sum(part["bytes"] for part in run["parts"]) == run["bytes"] > 0


def test_set_changes_the_model(capsys):
    found = json.loads(printed(capsys, "report --preset gpt2 --set n_layer=1 --set vocab_size=100 --format json"))
    assert found["parameters"]["total"] == parameters(preset("gpt2", {"n_layer": 1, "vocab_size": 100}))


def test_a_config_file_or_its_folder(capsys, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(preset("llama3-8b").keys))
    for path in (tmp_path, tmp_path / "config.json"):
        found = json.loads(printed(capsys, f"report --config {path} --format json"))
        assert (found["model"], found["parameters"]["total"]) == (tmp_path.name, 8_030_261_248)


@pytest.mark.parametrize("options", ["", "--latex", "--dense", "--dense --latex"])
def test_derive_prints_the_formulas(capsys, options):
    text = printed(capsys, f"derive --preset mixtral-8x7b {options}")
    assert text == derivation(preset("mixtral-8x7b"), dense="--dense" in options, latex="--latex" in options)
    assert ("\\[" in text) == ("--latex" in options)


def test_presets_are_listed_with_parameters_and_sources(capsys):
    lines = printed(capsys, "presets").splitlines()
    assert [line.split()[0] for line in lines[2:]] == names()
    for line, name in zip(lines[2:], names(), strict=True):
        assert f" {parameters(preset(name)):,} " in line
        assert line.endswith(source(name))


@pytest.mark.parametrize("case", REFUSED)
def test_a_refusal_is_one_line_and_exit_code_2(capsys, case):
    arguments, message = REFUSED[case]
    line = refusal(capsys, arguments.split())
    assert line.startswith("archcalc")
    for part in message.split(".*"):
        assert part in line


@pytest.mark.parametrize("arguments", [REFUSED["unknown preset"][0], REFUSED["batch that is no number"][0]])
def test_a_refusal_in_a_fresh_process(arguments):
    found = shell(arguments)
    assert (found.returncode, found.stdout) == (2, "")
    assert found.stderr.count("\n") == 1
    assert "Traceback" not in found.stderr


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "not JSON"),
        ("[]", "holds a list"),
        ("{", "not JSON"),
        ("\x00", "not JSON"),
        ('{"model_type": "berd"}', "berd"),
        ('{"model_type": "llama"}', "missing, and never guessed"),
        ('{"model_type": "llama", "model_type": "llama"}', "given twice"),
    ],
)
def test_a_hostile_file_is_refused_in_one_line(capsys, tmp_path, content, message):
    file = tmp_path / "config.json"
    file.write_text(content)
    assert message in refusal(capsys, ["report", "--config", str(file)])


def test_a_line_break_in_an_argument_stays_in_one_line(capsys):
    refusal(capsys, ["report", "--preset", "a\nb"])
    refusal(capsys, ["report", "--preset", "gpt2", "--set", "a\nb=3"])
    refusal(capsys, ["report", "--preset", "gpt2", "--batch", "1\n2"])
    refusal(capsys, ["report", "--config", "a\nb"])


@pytest.mark.parametrize("arguments", ["report --preset gpt2", "derive --preset transformer-base", "presets"])
def test_a_reader_that_leaves_early_gets_no_traceback(arguments):
    command = f"{sys.executable} -m archcalc {arguments} | head -1; echo ${{PIPESTATUS[0]}}"
    found = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert found.stderr == ""
    lines = found.stdout.splitlines()
    assert len(lines) == 2
    assert lines[1] == "0"


def test_a_closed_pipe_gets_no_traceback():
    """As above, but sure to be closed before anything is written."""
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "archcalc", "report", "--preset", "gpt2"]
    found = subprocess.run(command, cwd=ROOT, stdout=write, stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(write)
    assert (found.returncode, found.stderr) == (0, "")


def test_a_terminal_without_the_dot_still_gets_its_report():
    found = shell("report --preset gpt2", env=os.environ | {"PYTHONIOENCODING": "ascii"})
    assert (found.returncode, found.stderr) == (0, "")
    assert "D?N?H" in found.stdout


def test_a_report_imports_nothing_heavy():
    script = """
import sys
from archcalc.cli import main
assert main(["report", "--preset", "mixtral-8x7b"]) == 0
assert main(["presets"]) == 0
assert main(["report", "--preset", "llama3-8b", "--explain", "active", "--kv", "reserved", "--macs"]) == 0
assert main(["training", "--preset", "llama3-8b"]) == 0
import archcalc
heavy = {"torch", "onnx", "onnxruntime", "numpy", "sympy", "transformers"} & set(sys.modules)
assert not heavy, heavy
assert main(["derive", "--preset", "gpt2"]) == 0
assert "sympy" in sys.modules
heavy = {"torch", "onnx", "numpy"} & set(sys.modules)
assert not heavy, heavy
"""
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True, capture_output=True, timeout=60)


def test_the_first_lines_of_help_name_the_commands(capsys):
    with pytest.raises(SystemExit) as end:
        main(["--help"])
    assert end.value.code == 0
    text = capsys.readouterr().out
    assert all(command in text for command in ("report", "training", "derive", "presets"))
