"""Progress bars on a terminal; silence everywhere else."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TypeVar

Item = TypeVar("Item")


def progress(items: Iterable[Item], label: str) -> Iterable[Item]:
    """The same items, with a bar on stderr if that is a terminal and it takes longer than 2 s."""
    from tqdm import tqdm

    return tqdm(items, desc=label, delay=2, leave=False, disable=not sys.stderr.isatty())
