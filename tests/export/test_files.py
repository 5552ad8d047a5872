"""Whatever stops a writer, the old files stay, whole; what a killed one left is cleared away."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace

import pytest

from archcalc.files import replaced_file
from archcalc.presets import preset
from export.build import MANIFEST, build, open_build
from export.cli import main
from export.files import ExportError, replaced_folder, sha256
from export.graph import WEIGHTS


def _left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.parent.iterdir())


def test_a_full_disk_leaves_the_old_build(copied, capsys):
    """A limit on the size of files, as far as a writer can tell from a disk without room."""
    before = sha256(copied.folder / WEIGHTS)
    code = f"""
        import resource, sys
        from export.cli import main
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        sys.exit(main(["build", "--preset", "tiny-decoder", "--capacity", "8", "--out", {str(copied.folder)!r}]))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "cannot be written, File too large; make room or give another folder, nothing was changed" in done.stderr
    assert done.stderr.count("\n") == 1
    assert sha256(open_build(copied.folder).folder / WEIGHTS) == before
    assert _left(copied.folder) == ["copy"]


def test_too_little_room_is_told_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=1000))
    monkeypatch.setattr("export.build.write_weights", pytest.fail)
    with pytest.raises(ExportError, match=r"to write, 1 kB free; make room or give another folder"):
        build(preset("tiny-decoder"), tmp_path / "new", "fp32", (8,))
    assert list(tmp_path.iterdir()) == []


def test_a_kill_in_the_middle_leaves_the_old_build_and_its_rest_is_removed(copied):
    before = sha256(copied.folder / WEIGHTS)
    script = f"""
        import os, signal
        from pathlib import Path
        from archcalc.presets import preset
        from export import build, weights_file
        append = weights_file._DataFile._append

        def until(self, content):
            append(self, content)
            if self.stream.tell() > 100_000:
                os.kill(os.getpid(), signal.SIGKILL)

        weights_file._DataFile._append = until
        build.build(preset("tiny-decoder"), Path({str(copied.folder)!r}), "fp32", (8,))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert sha256(open_build(copied.folder).folder / WEIGHTS) == before
    assert len(_left(copied.folder)) == 2
    with replaced_folder(copied.folder, MANIFEST) as new:
        shutil.copytree(open_build(copied.folder).folder, new, dirs_exist_ok=True)
    assert _left(copied.folder) == ["copy"]
    assert sha256(open_build(copied.folder).folder / WEIGHTS) == before


def test_what_another_writer_is_at_is_left_alone(tmp_path):
    with replaced_folder(tmp_path / "b", "mark") as first:
        (first / "mark").write_text("first")
        with replaced_folder(tmp_path / "b", "mark") as second:
            (second / "mark").write_text("second")
            assert (first / "mark").read_text() == "first"
        assert (tmp_path / "b" / "mark").read_text() == "second"
    assert (tmp_path / "b" / "mark").read_text() == "first"


def test_a_kill_between_two_renames_is_mended(tmp_path):
    old = tmp_path / ".b.abcd1234.old"
    old.mkdir()
    (old / "mark").write_text("old")
    mine = tmp_path / ".b.notes"
    mine.mkdir()
    with pytest.raises(ZeroDivisionError), replaced_folder(tmp_path / "b", "mark"):
        raise ZeroDivisionError
    assert (tmp_path / "b" / "mark").read_text() == "old"
    assert sorted(p.name for p in tmp_path.iterdir()) == [".b.notes", "b"]


def test_a_link_to_a_folder_stays_and_leads_to_what_is_new(tmp_path):
    for text in ("first", "second"):
        with replaced_folder(tmp_path / "elsewhere", "mark") as new:
            (new / "mark").write_text("old")
        if text == "first":
            (tmp_path / "b").symlink_to("elsewhere")
        with replaced_folder(tmp_path / "b", "mark") as new:
            (new / "mark").write_text(text)
        assert (tmp_path / "b").is_symlink()
        assert (tmp_path / "elsewhere" / "mark").read_text() == text
    assert sorted(p.name for p in tmp_path.iterdir()) == ["b", "elsewhere"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_an_unwritable_folder(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(ExportError, match="cannot be written, Permission denied; give another folder"):
        build(preset("tiny-decoder"), tmp_path / "new", "fp32", (8,))
    tmp_path.chmod(0o700)


def test_a_folder_below_a_file_cannot_be_written(tmp_path, capsys):
    (tmp_path / "file").touch()
    assert main(["build", "--preset", "tiny-decoder", "--out", str(tmp_path / "file" / "new")]) == 2
    error = capsys.readouterr().err
    assert "cannot be written" in error
    assert error.count("\n") == 1


def test_a_kill_in_the_middle_leaves_the_old_file(tmp_path):
    path = tmp_path / "report.md"
    path.write_text("old")
    script = f"""
        import os, signal
        from pathlib import Path
        from archcalc.files import replaced_file
        with replaced_file(Path({str(path)!r})) as new:
            new.write_text("ne")
            os.kill(os.getpid(), signal.SIGKILL)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert path.read_text() == "old"


def test_a_file_and_a_folder_are_replaced_whole(tmp_path):
    with replaced_file(tmp_path / "a.txt") as new:
        new.write_text("1")
    assert (tmp_path / "a.txt").read_text() == "1"
    for text in ("1", "2"):
        with replaced_folder(tmp_path / "b", "mark") as folder:
            (folder / "mark").write_text(text)
    assert (tmp_path / "b" / "mark").read_text() == "2"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.txt", "b"]
