"""Writing so that a kill leaves the old files or none, and reading back what was written, checked."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from archcalc.errors import ArchcalcError


class ExportError(ArchcalcError):
    """A model, or a file, that cannot be exported or run; the message says which part and what to do."""


@contextlib.contextmanager
def replaced_folder(path: Path, mark: str) -> Iterator[Path]:
    """As `replaced_file` for a folder. An existing one is replaced only if it holds a file named `mark`.

    Raises: ExportError where the folder holds something else, or cannot be written.
    """
    path = Path(os.path.abspath(path))
    if path.exists() and not (path.is_dir() and ((path / mark).is_file() or not any(path.iterdir()))):
        raise ExportError(f"out={path}: exists and holds no {mark}; give another folder, nothing was changed")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        new = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    except OSError as error:
        raise ExportError(f"out={path}: cannot be written, {error.strerror}; give another folder") from None
    old = new.with_name(new.name + ".old")
    try:
        yield new
        os.chmod(new, 0o755)
        if path.exists():
            os.rename(path, old)
        os.rename(new, path)
    except OSError as error:
        raise ExportError(f"out={path}: cannot be written, {error.strerror}; nothing was changed") from None
    finally:
        shutil.rmtree(new, ignore_errors=True)
        if path.exists():
            shutil.rmtree(old, ignore_errors=True)


def sha256(path: Path) -> str:
    """Hexadecimal SHA-256 of a file's bytes."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
