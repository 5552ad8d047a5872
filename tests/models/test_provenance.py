"""The line at the end of a report."""

import subprocess

from models import provenance


def test_the_line_says_command_commit_machine_day_and_packages():
    line = provenance.made("python -m x", ["torch", "no-such-package"], "seeds: 7")
    assert line.startswith("Command `python -m x`; commit ") and line.endswith(".")
    assert "seeds: 7" in line and " cores" in line and "torch 2" in line and "no-such-package" not in line


def test_a_change_is_marked_unless_it_is_a_report(tmp_path, monkeypatch):
    (tmp_path / "reports").mkdir()
    (tmp_path / "models").mkdir()
    for name in ("reports/a.md", "models/provenance.py"):
        (tmp_path / name).write_text("one")
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "one"]):
        subprocess.run([*git, *words], check=True)
    monkeypatch.setattr(provenance, "__file__", str(tmp_path / "models" / "provenance.py"))
    clean = provenance.commit()
    (tmp_path / "reports/a.md").write_text("two")
    assert provenance.commit() == clean and "-" not in clean
    (tmp_path / "models/provenance.py").write_text("two")
    assert provenance.commit() == f"{clean}-dirty"


def test_without_a_checkout(tmp_path, monkeypatch):
    monkeypatch.setattr(provenance, "__file__", str(tmp_path / "provenance.py"))
    assert provenance.commit() == "not a git checkout"
