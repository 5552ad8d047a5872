"""What a package measured or compiled before, kept in files: the builder's timing cache and the runtime's kernels.

`tensorrt` times kernels while it builds. TensorRT-RTX times nothing, and compiles kernels for this GPU when it runs.
Both check by themselves whether a file was made by this version for this GPU; one that was not is not used.
"""

from __future__ import annotations

import logging
from pathlib import Path
from types import ModuleType

from archcalc.files import replaced_file
from export.files import ExportError
from export.tensorrt_package import Log, package_name

log = logging.getLogger(__name__)


def timing_cache_path(trt: ModuleType, wanted: Path | None, folder: Path, capability: str) -> Path | None:
    """The file of the builder's timings: the wanted one, or one in the build folder; None if the package times nothing.

    Raises: ExportError if a file is wanted of a package that times nothing.
    """
    if trt.__name__ == "tensorrt":
        return wanted or folder / f"timing-{capability}.cache"
    if wanted:
        raise ExportError(
            f"timingCacheFile={wanted}: {package_name(trt)} times nothing while it builds; leave it out, "
            "the kernels it compiles when it runs are kept beside the engine"
        )
    return None


def use_timing_cache(settings, path: Path, said: Log) -> str | None:
    """Let the builder use the file's timings and add to them; returns a note if the file is of no use here."""
    known = path.read_bytes() if path.is_file() else b""
    before = len(said.warnings()) + len(said.errors)
    cache = settings.create_timing_cache(known)  # an empty one, with a warning, if it cannot read the bytes
    complained = len(said.warnings()) + len(said.errors) > before
    if cache is not None and settings.set_timing_cache(cache, False) and not (known and complained):
        return None
    settings.set_timing_cache(settings.create_timing_cache(b""), False)
    return f"{path}: timings of another version or GPU, not used; it is written again"


def save_timing_cache(settings, path: Path) -> str | None:
    """Write what the builder measured; returns a note if that is not possible: the engine is as good without."""
    try:
        with replaced_file(path) as temporary:
            temporary.write_bytes(settings.get_timing_cache().serialize())
    except OSError as error:
        return f"{path}: timings cannot be written, {error.strerror}"
    return None


def use_runtime_cache(config, path: Path):
    """The runtime cache of an `IRuntimeConfig`, with the file's kernels if they are for this version and GPU."""
    cache = config.create_runtime_cache()
    if path.is_file() and not cache.deserialize(path.read_bytes()):
        log.warning("%s: kernels of another version or GPU, not used; it is written again", path)
    config.set_runtime_cache(cache)
    return cache


def save_runtime_cache(cache, path: Path) -> None:
    """Write the kernels that were compiled. A folder that cannot be written costs the next start, not this one."""
    try:
        with replaced_file(path) as temporary:
            temporary.write_bytes(cache.serialize())
    except OSError as error:
        log.warning("%s: cannot be written, %s; kernels will be compiled again", path, error.strerror)
