"""How fast the calculator is, against the bars it has to clear: `python benchmarks/bench_calculator.py`.

A cold start is measured in turns with what it is compared to, because a machine's speed drifts within minutes.
Exits with 1 if a bar is missed.
"""

from __future__ import annotations

import gc
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from archcalc import Request, preset, report  # noqa: E402
from archcalc.render import table  # noqa: E402

PRESET = "llama3-8b"
REPORT = ["-m", "archcalc", "report", "--preset", PRESET]
SYMPY = ["-c", "import sympy"]
COLD_STARTS, POINTS = 15, 2_000_000
BARS = {"cold start / import sympy": 0.4, "microseconds a model": 100.0, "sweep points a second": 5e6}


def seconds(arguments: list[str]) -> float:
    """Wall time of a fresh interpreter. Compiled modules are cached, as after any install."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    start = time.perf_counter()
    # Without a timeout: with one, `wait` polls every few ms up to 50, and that is what would be measured.
    subprocess.run([sys.executable, *arguments], cwd=ROOT, env=environment, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def cold_start() -> tuple[float, float]:
    """Median seconds of (a report, `import sympy`), run in turns."""
    seconds(REPORT), seconds(SYMPY)  # the first run compiles
    pairs = [(seconds(REPORT), seconds(SYMPY)) for _ in range(COLD_STARTS)]
    return tuple(map(statistics.median, zip(*pairs, strict=True)))


def in_process(name: str = PRESET) -> tuple[float, float]:
    """Microseconds of `report`, whole: (the first of a model, a further one of another request).

    Best of 200 batches, as `timeit` counts. No two models have the same sizes and no two requests are alike, so
    nothing that depends on them can have been kept.
    """
    sizes = iter(range(30_000, 40_000))
    batches = [[preset(name, {"vocab_size": next(sizes)}) for _ in range(5)] for _ in range(200)]
    report(preset(name))  # imports are not counted
    best = []
    gc.collect()
    gc.disable()
    for turn in (0, 1):
        found = []
        for number, batch in enumerate(batches):
            requests = [Request(batch=1 + number, prompt=512 + 5 * number + i + turn) for i in range(len(batch))]
            start = time.perf_counter()
            for config, request in zip(batch, requests, strict=True):
                report(config, request)
            found.append((time.perf_counter() - start) / len(batch) * 1e6)
        best.append(min(found))
    gc.enable()
    return tuple(best)


def points_a_second(name: str = PRESET) -> float:
    """(batch, context) points of a decode step: FLOPs, bytes, KV bytes and roofline; best of 3."""
    import numpy as np

    from archcalc.sweep import sweep

    random = np.random.default_rng(0)
    batch, context = random.integers(1, 257, POINTS), random.integers(1, 8193, POINTS)
    best = float("inf")
    for _ in range(3):
        start = time.perf_counter()
        sweep(preset(name), batch, context)
        best = min(best, time.perf_counter() - start)
    return POINTS / best


def main() -> int:
    cold, sympy = cold_start()
    first, again = in_process()
    rate = points_a_second()
    ratio_bar, us_bar, rate_bar = BARS.values()
    rows = [
        ["cold start of a report / of `import sympy`", f"{cold / sympy:.3f}", f"at most {ratio_bar}"],
        ["all numbers of a model, for a request", f"{again:.0f} us", f"at most {us_bar:.0f} us"],
        ["sweep points a second", f"{rate / 1e6:.1f} M", f"at least {rate_bar / 1e6:.0f} M"],
    ]
    passed = [cold / sympy <= ratio_bar, again <= us_bar, rate >= rate_bar]
    for row, good in zip(rows, passed, strict=True):
        row.append("pass" if good else "FAIL")
    print(table(rows, [PRESET, "measured", "bar", "verdict"], "table"))
    print(f"\nreport {cold * 1e3:.0f} ms, import sympy {sympy * 1e3:.0f} ms (medians of {COLD_STARTS})")
    print(f"first report of a model never seen before: {first:.0f} us")
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
