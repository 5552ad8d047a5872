"""Writing so that a kill leaves the old files or none, and reading back what was written, checked."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from archcalc.errors import ArchcalcError
from archcalc.units import scaled

UNFINISHED = ".unfinished"  # in a folder that is being written, which its writer keeps locked as long as it lives


class ExportError(ArchcalcError):
    """A model, or a file, that cannot be exported or run; the message says which part and what to do."""


@contextlib.contextmanager
def replaced_folder(path: Path, mark: str) -> Iterator[Path]:
    """As `replaced_file` for a folder. An existing one is replaced only if it holds a file named `mark`.

    What a killed writer of the same path left behind is removed first.
    Raises: ExportError where the folder holds something else, or cannot be written.
    """
    path = Path(os.path.realpath(path))  # where it is a link, what it leads to is replaced, and it stays
    if path.exists() and not (path.is_dir() and ((path / mark).is_file() or not any(path.iterdir()))):
        raise ExportError(f"out={path}: exists and holds no {mark}; give another folder, nothing was changed")
    made = [folder for folder in path.parents if not folder.exists()]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(path, mark)
        new = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    except OSError as error:
        raise ExportError(f"out={path}: cannot be written, {error.strerror}; give another folder") from None
    old = new.with_name(new.name + ".old")
    try:
        with _locked(new):
            (new / UNFINISHED).touch()
            yield new
            (new / UNFINISHED).unlink()
        os.chmod(new, 0o755)
        if path.exists():
            os.rename(path, old)
        os.rename(new, path)
    except OSError as error:
        raise ExportError(
            f"out={path}: cannot be written, {error.strerror}; make room or give another folder, nothing was changed"
        ) from None
    finally:
        shutil.rmtree(new, ignore_errors=True)
        if path.exists():
            shutil.rmtree(old, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):  # somebody else's by now
                for folder in made:
                    folder.rmdir()


def _remove_abandoned(path: Path, mark: str) -> None:
    """Remove what writers of `path` left that were killed, and put the old folder back where they were renaming it."""
    ours = re.compile(rf"\.{re.escape(path.name)}\.\w{{8}}(\.old)?")
    for found in path.parent.iterdir():
        match = ours.fullmatch(found.name)
        if not match or found.is_symlink():
            continue
        if match[1] and (found / mark).is_file():
            shutil.rmtree(found) if path.exists() else os.rename(found, path)
        elif (found / UNFINISHED).is_file():
            with contextlib.suppress(BlockingIOError), _locked(found):
                shutil.rmtree(found)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock, which goes with the process. Raises: BlockingIOError if another one has it."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(handle)


def check_space(folder: Path, needed: int) -> None:
    """Raise ExportError if fewer than `needed` bytes are free where the folder is."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise ExportError(
            f"out={folder.parent}: {scaled(needed, 'B')} to write, {scaled(free, 'B')} free; make room or give another "
            "folder, nothing was changed"
        )


def sha256(path: Path) -> str:
    """Hexadecimal SHA-256 of a file's bytes."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def file_sums(paths: Iterable[Path]) -> dict[str, str]:
    """The SHA-256 of each file by its name, several at a time."""
    from models.progress import progress

    paths = list(paths)
    with ThreadPoolExecutor() as pool:
        sums = progress(pool.map(sha256, paths), "check files")
        return {path.name: found for path, found in zip(paths, sums, strict=True)}
