"""How a report was made: by which commit, packages and machine."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path


def made(command: str, packages: Iterable[str], *more: str) -> str:
    """One line for the end of a report: the command, what else is to be said, and where and when it ran."""
    listed = ", ".join(f"{name} {version}" for name, version in versions(packages).items())
    parts = [f"Command `{command}`", f"commit {commit()}", *more, machine(), str(datetime.date.today()), listed]
    return "; ".join(parts) + "."


def machine() -> str:
    """The processor, as the system names it, and how many cores this process may use."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    name = names[0] if names else platform.processor() or platform.machine()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{name}, {cores} cores"


def commit() -> str:
    """The commit of this checkout, with a mark where files differ from it (reports aside: they are what is written)."""
    git = ["git", "-C", str(Path(__file__).parent)]
    try:
        found = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    except OSError:  # no git
        return "not a git checkout"
    if found.returncode:
        return "not a git checkout"
    changed = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", ":/", ":(exclude,top)reports"]).returncode
    return found.stdout.strip() + ("-dirty" if changed else "")


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Installed versions of Python and of those packages that are installed."""
    found = {"python": platform.python_version()}
    for name in packages:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
