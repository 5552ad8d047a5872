"""What the README shows is what happens."""

from __future__ import annotations

import doctest
import re
import shlex
from pathlib import Path

import pytest

from archcalc.cli import main, parser
from archcalc.families import MODULES
from archcalc.presets import names
from export.cli import parser as export_parser
from models.cli import parser as models_parser

PARSERS = {"archcalc": parser, "export": export_parser, "models": models_parser}
README = Path(__file__).parent.parent / "README.md"
COMMANDS = re.findall(r"^\$ (.+?)(?:\s+#.*)?$", README.read_text(), re.M)


def test_python_examples():
    result = doctest.testfile(str(README), module_relative=False)
    assert result.attempted >= 4
    assert result.failed == 0


def test_the_first_screen_is_what_the_command_prints(capsys):
    shown = README.read_text().split("$ archcalc report --preset llama3-8b\n")[1].split("\n...\n")[0]
    assert main(["report", "--preset", "llama3-8b"]) == 0
    assert capsys.readouterr().out.startswith(shown)


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.split()[0] in ("archcalc", "python")])
def test_every_command_is_understood(command):
    words = shlex.split(command.replace("[--latex]", "--latex"))
    module = words[2] if words[0] == "python" else "archcalc"
    PARSERS[module]().parse_args(words[3:] if words[0] == "python" else words[1:])


def test_the_two_commands_and_the_warning_are_there():
    text = README.read_text()
    makefile = (README.parent / "Makefile").read_text()
    for command in ("make demo", "make test"):
        assert command in COMMANDS
        assert f"\n{command.split()[1]}:" in makefile
    assert "make test" in (README.parent / ".ci" / "run").read_text()
    assert "runs the shell's own `export`, which does nothing" in text


def test_the_refusal_that_is_shown_is_the_one_that_is_printed(capsys):
    command, shown = re.search(r"^\$ (archcalc .+--set attention_heads=16)\n(.+)$", README.read_text(), re.M).groups()
    assert main(shlex.split(command)[1:]) == 2
    assert capsys.readouterr().err == shown + "\n"


def test_there_are_as_many_model_types_and_presets_as_it_says():
    assert len(MODULES) > 150
    assert len(names()) >= 90
