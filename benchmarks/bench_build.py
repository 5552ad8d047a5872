"""Building grows with the kinds of block, not with depth: `python benchmarks/bench_build.py`.

A model of 2 layers and one of 126, of one kind of block, are built in turns, as a machine's speed drifts within
minutes. What 126 layers may take more is the time that their bytes take to be written, measured beside them. With
`--shape` the blocks are those of Llama 3.1 405B but narrower. Exits with 1 if the bar is missed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from archcalc.config import ModelConfig  # noqa: E402
from archcalc.presets import preset  # noqa: E402
from archcalc.render import table  # noqa: E402
from export.build import build  # noqa: E402

FEW, MANY, TURNS, BAR = 2, 126, 5, 1.5
NARROW = {"hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 16, "head_dim": 8, "vocab_size": 1024}
SHAPES = {
    "tiny-decoder": {},
    "llama3.1-405b": NARROW,
}


def model(name: str, layers: int) -> ModelConfig:
    return preset(name, SHAPES[name] | {"num_hidden_layers": layers})


def build_seconds(config: ModelConfig, out: Path) -> float:
    start = time.perf_counter()
    build(config, out, "fp16", (64,))
    return time.perf_counter() - start


def write_seconds(folder: Path, count: int) -> float:
    """Of a plain write of so many bytes."""
    path, block = folder / "plain.bin", os.urandom(count)
    start = time.perf_counter()
    path.write_bytes(block)
    return time.perf_counter() - start


def measured(name: str, folder: Path, turns: int) -> tuple[list, bool]:
    """A row of the table, and whether the bar is met."""
    out, seconds, writing = folder / "build", {FEW: [], MANY: []}, []
    build_seconds(model(name, FEW), out)  # the first one imports
    for _ in range(turns):
        for layers in (FEW, MANY):
            seconds[layers].append(build_seconds(model(name, layers), out))
        writing.append(write_seconds(folder, sum(path.stat().st_size for path in out.iterdir())))
    few, many, written = (statistics.median(one) for one in (*seconds.values(), writing))
    ratio = (many - written) / few
    row = [name, f"{few:.2f} s", f"{many:.2f} s", f"{written:.3f} s", f"{ratio:.2f}"]
    return [*row, "pass" if ratio <= BAR else "FAIL"], ratio <= BAR


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, nargs="+", default=list(SHAPES))
    parser.add_argument("--turns", type=int, default=TURNS, help=f"builds of each ({TURNS})")
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="bench-"))
    try:
        found = [measured(name, folder, args.turns) for name in args.shape]
    finally:
        shutil.rmtree(folder)
    headers = ["shape", f"{FEW} layers", f"{MANY} layers", "writing its bytes", "ratio without", f"at most {BAR}"]
    print(table([row for row, _ in found], headers, "table"))
    return 0 if all(good for _, good in found) else 1


if __name__ == "__main__":
    sys.exit(main())
