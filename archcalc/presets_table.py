"""All presets in one table: sizes, and who else counted them.

`python -m archcalc.presets_table` writes reports/presets.md, and the index of the presets beside their files.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import NamedTuple

from archcalc.cost import active_parameters, bound, cache_elements, parameters
from archcalc.files import replaced_file
from archcalc.hf import config_from_keys
from archcalc.presets import FOLDER, INDEX, files, table

TARGET = Path("reports") / "presets.md"
COUNTS = ["total", "active", "cache a token", "a source token", "state"]
COLUMNS = ["preset", "model_type", *COUNTS, "checked by", "source"]
HEAD = """\
# Presets

Written by `python -m archcalc.presets_table`. {count} models of {kinds} model types. Everything is a count of elements.

`total`: parameters, a tied matrix once; towers for images or sound and layers that predict further tokens are left out.
`active`: those that one token uses. `cache a token`: keys and values, or what stands for them, that the first token
leaves in all layers; layers with a window or a chunk keep no more than that many tokens, layers that compress fewer.
`a source token`: keys and values of cross-attention. `state`: of recurrent layers, of one size at any context.
`checked by`: who built the same config and counted `total`. {exact} agree to the last parameter; the others say what
differs and by how much.

"""


class Row(NamedTuple):
    """One preset; its fields but the last are the COLUMNS. `apart` is our total less that of who checked it."""

    name: str
    model_type: str
    total: int
    active: int
    cache: int
    cross: int
    state: int
    checked: str
    source: str
    apart: int


def index() -> dict[str, list[str]]:
    """What index.json must say: the names in each file."""
    return {file: list(table(file)) for file in files()}


def _agreement(checked: dict) -> str:
    """Who counted the same config, and what differs."""
    differs = {what: value for what, value in checked.get("differs", {}).items() if what != "why"}
    if not differs:
        return checked["by"]
    amounts = ", ".join(f"{value:+,} {what}" for what, value in differs.items())
    return f"{checked['by']}; here {amounts}: {checked['differs']['why']}"


def rows() -> list[Row]:
    """Every preset, family by family."""
    found = []
    for file in files():
        for name, one in table(file).items():
            config = config_from_keys(one["config"], name=name)
            held = cache_elements(bound(config)[1], 1, 1, 1)
            sizes = parameters(config), active_parameters(config), *held
            said = _agreement(one["checked"]), one["source"], one["checked"].get("differs", {}).get("parameters", 0)
            found.append(Row(name, one["config"]["model_type"], *sizes, *said))
    return found


def presets_table() -> str:
    """The report as Markdown."""
    found = rows()
    exact = sum(row.apart == 0 for row in found)
    kinds = len({row.model_type for row in found})
    lines = [
        COLUMNS,
        ["---:" if column in COUNTS else "---" for column in COLUMNS],
        *(row[: len(COLUMNS)] for row in found),
    ]
    cells = [[f"{cell:,}" if isinstance(cell, int) else cell for cell in line] for line in lines]
    body = "".join(f"| {' | '.join(line)} |\n" for line in cells)
    return HEAD.format(count=len(found), kinds=kinds, exact=exact) + body


def main() -> int:
    """Write the index, and the report under the current folder."""
    with replaced_file(Path(FOLDER) / INDEX) as new:
        new.write_text(json.dumps(index(), indent=2) + "\n", encoding="utf-8")
    with replaced_file(TARGET) as new:
        new.write_text(presets_table(), encoding="utf-8")
    print(f"wrote {TARGET}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
