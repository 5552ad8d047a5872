"""`tensorrt` (10 and later) and `tensorrt_rtx`: which one serves this machine, what it builds for, what it said.

Both have the same API; what one of them lacks is asked of the module (`hasattr`), never of its version.
"""

from __future__ import annotations

import ctypes
import importlib
import re
import uuid
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from export.files import ExportError

INSTALL = 'pip install "archcalc[trt-rtx]"'
DEFAULT_CAPABILITY = "sm_89"  # Ada: what TensorRT-RTX builds for when no GPU says otherwise
COMPUTE_CAPABILITY_MAJOR, COMPUTE_CAPABILITY_MINOR = 75, 76  # CUdevice_attribute, cuda.h


@dataclass(frozen=True)
class Gpu:
    """The first CUDA device; `capability` is written as sm_NN, `uuid` as nvidia-smi knows it."""

    name: str
    capability: str
    uuid: str = ""


def gpu() -> Gpu | None:
    """The first CUDA device, or None without a driver or a device. Source: CUDA driver API, asked without torch."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    device, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    if cuda.cuInit(0) or cuda.cuDeviceGet(ctypes.byref(device), 0):
        return None
    name, identity = ctypes.create_string_buffer(256), (ctypes.c_ubyte * 16)()
    cuda.cuDeviceGetName(name, len(name), device)
    cuda.cuDeviceGetUuid(ctypes.byref(identity), device)
    cuda.cuDeviceGetAttribute(ctypes.byref(major), COMPUTE_CAPABILITY_MAJOR, device)
    cuda.cuDeviceGetAttribute(ctypes.byref(minor), COMPUTE_CAPABILITY_MINOR, device)
    known = f"GPU-{uuid.UUID(bytes=bytes(identity))}"
    return Gpu(name.value.decode(), f"sm_{major.value}{minor.value}", known)


def load_tensorrt() -> ModuleType:
    """`tensorrt` where there is a GPU and it is installed, else `tensorrt_rtx`, which builds without a GPU.

    Raises: ExportError if neither can be imported.
    """
    reasons = []
    for name in ("tensorrt", "tensorrt_rtx") if gpu() else ("tensorrt_rtx",):
        try:
            return importlib.import_module(name)
        except (ImportError, OSError, RuntimeError) as error:  # the last two: libraries that are missing or too new
            reasons.append(f"{name}: {error}")
    raise ExportError(f"backend=tensorrt: not installed ({'; '.join(reasons)}); {INSTALL}")


def package_name(trt: ModuleType) -> str:
    """Name and version, for messages."""
    return f"{trt.__name__} {trt.__version__}"


def target_of(trt: ModuleType, wanted: str | None, device: Gpu | None) -> tuple[str, Any]:
    """The capability's name and, where the package can build for another GPU, its enumerator.

    Args:
        wanted: sm_NN; None for this machine's GPU, or the default without one.
    Raises: ExportError for what the package cannot build for here.
    """
    if not hasattr(trt, "ComputeCapability"):  # the full package builds for the GPU that it runs on
        if device is None or wanted not in (None, device.capability):
            here = device.capability if device else "no GPU"
            raise ExportError(f"compute_capability={wanted}: {trt.__name__} builds for this machine, {here}; {INSTALL}")
        return device.capability, None
    known = {
        f"sm_{member[2:]}": target
        for member, target in trt.ComputeCapability.__members__.items()
        if re.fullmatch(r"SM\d+", member)
    }
    name = wanted or (device.capability if device else DEFAULT_CAPABILITY)
    if name not in known:
        known_names = ", ".join(known)
        raise ExportError(f"compute_capability={name}: {package_name(trt)} does not know it; use one of {known_names}")
    return name, trt.ComputeCapability.CURRENT if device and wanted is None else known[name]


class Log:
    """What TensorRT said while it worked. `sink` is the logger that it wants.

    A package takes one logger a process, the first one, for as long as anything made with it lives. So each package
    has one, and it tells the newest `Log`.
    """

    _sinks: dict[str, Any] = {}  # noqa: RUF012 - one for all

    def __init__(self, trt: ModuleType):
        self.errors: list[str] = []
        self._warnings: dict[str, list[str]] = {}
        if trt.__name__ not in self._sinks:
            self._sinks[trt.__name__] = _sink(trt)
        self.sink = self._sinks[trt.__name__]
        self.sink.listener = self

    def heard(self, message: str, is_error: bool) -> None:
        if is_error:
            self.errors.append(message)
        else:
            self._warnings.setdefault(message.split(": ", 1)[0], []).append(message)

    def warnings(self) -> list[str]:
        """One message of each place in the source that warned: a warning a layer says nothing new."""
        more = lambda same: f" (and {len(same) - 1} alike)" if len(same) > 1 else ""  # noqa: E731
        return [same[0] + more(same) for same in self._warnings.values()]

    def reason(self) -> str:
        return " ".join((self.errors or ["no reason given"])[0].split())


def _sink(trt: ModuleType):
    """A logger that passes errors and warnings on to its `listener`."""
    severity = trt.ILogger.Severity

    class Sink(trt.ILogger):
        def __init__(self):
            trt.ILogger.__init__(self)

        def log(self, level, message):
            if level in (severity.ERROR, severity.INTERNAL_ERROR, severity.WARNING):
                self.listener.heard(message, level != severity.WARNING)

    return Sink()
