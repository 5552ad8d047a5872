"""What state the GPU was in while it was timed, as nvidia-smi tells it."""

from __future__ import annotations

import csv
import subprocess

FIELDS = (
    "name", "driver_version", "pstate", "persistence_mode", "mig.mode.current", "clocks.sm", "clocks.max.sm",
    "clocks.mem", "power.draw", "power.limit", "temperature.gpu", "memory.used", "memory.total",
    "clocks_event_reasons.active",
)  # fmt: skip
SECONDS = 10  # a driver that hangs must not hang the measurement


def gpu_state(device: str) -> dict[str, str]:
    """The fields of this device with their units, e.g. {"clocks.sm": "1980 MHz", ...}. Reads only.

    Args:
        device: its UUID, as `tensorrt_package.gpu` gives it.
    Returns: an empty dictionary where nvidia-smi is missing, fails or does not answer.
    """
    command = ["nvidia-smi", f"--id={device}", f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader"]
    try:
        told = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return {}
    values = next(csv.reader(told.splitlines(), skipinitialspace=True), [])
    return dict(zip(FIELDS, values, strict=True)) if len(values) == len(FIELDS) else {}
