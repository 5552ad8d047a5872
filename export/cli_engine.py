"""What `export build` and `bench` say of TensorRT engines and of measuring, in trtexec's words."""

from __future__ import annotations

import argparse
import math
import re
from pathlib import Path
from typing import Any

BOUNDS = ("minShapes", "optShapes", "maxShapes")
UNITS = {"": 2**20, "B": 1, "K": 2**10, "M": 2**20, "G": 2**30}  # of a pool's size; trtexec's is MiB without one
SLOWEST_LAYERS = 20


def _shapes(text: str) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}
    for part in text.split(","):
        match = re.fullmatch(r"([^:]+):([1-9]\d{0,8}(?:x[1-9]\d{0,8})*)", part.strip())
        if not match or match[1] in found:
            raise argparse.ArgumentTypeError(f"{text!r}: give each input once with sizes from 1, as in input_ids:1x128")
        found[match[1]] = tuple(map(int, match[2].split("x")))
    return found


def _workspace(text: str) -> int:
    match = re.fullmatch(r"workspace:(\d{1,9})([BKMG]?)", text)
    if not match or not int(match[1]):
        raise argparse.ArgumentTypeError(f"{text!r}: give workspace:SIZE in MiB, or with B, K, M or G, from 1")
    return int(match[1]) * UNITS[match[2]]


def _level(text: str) -> int:
    if text not in tuple("012345"):
        raise argparse.ArgumentTypeError(f"{text!r}: give a whole number from 0 (a fast build) to 5")
    return int(text)


def _time(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r}: give a number from 0")
    return value


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 2**31 - 1:
        raise argparse.ArgumentTypeError(f"{text!r}: give a whole number from 1")
    return int(text)


def add_build_options(command: argparse.ArgumentParser) -> None:
    """The options of an engine; `engine_settings` reads them."""
    one = command.add_argument_group("TensorRT engine (--backend tensorrt)")
    one.add_argument("--compute-capability", metavar="SM", help="GPU to build engines for (this one's, or sm_89)")
    for bound, what in zip(BOUNDS, ("least", "those it is tuned for", "most"), strict=True):
        help_text = f"sizes of a prompt's inputs, {what}: input_ids:BATCHxTOKENS,logit_indices:BATCHxPOSITIONS"
        one.add_argument(f"--{bound}", type=_shapes, metavar="SHAPES", help=help_text)
    one.add_argument("--memPoolSize", type=_workspace, metavar="workspace:MIB", help="most scratch memory of a layer")
    one.add_argument("--builderOptimizationLevel", type=_level, metavar="0-5", help="a fast build, to a fast engine")
    text = "leave the weights out of the plan; they are put back from the build folder when it is opened"
    one.add_argument("--stripWeights", "--strip-weights", action="store_true", help=text)
    one.add_argument("--timingCacheFile", type=Path, metavar="FILE", help="kernel timings (in the build folder)")


def engine_settings(args: argparse.Namespace) -> dict[str, Any]:
    """Fields of `EngineSettings` from the options. Raises: ExportError if one is given for another backend."""
    from export.files import ExportError

    shapes = {bound: given for bound in BOUNDS if (given := getattr(args, bound))}
    found = {
        "compute_capability": args.compute_capability,
        "shapes": shapes or None,
        "workspace_bytes": args.memPoolSize,
        "builder_optimization_level": args.builderOptimizationLevel,
        "strip_weights": args.stripWeights or None,
        "timing_cache": args.timingCacheFile,
    }
    given = {name: value for name, value in found.items() if value is not None}
    if given and args.backend != "tensorrt":
        raise ExportError(f"backend={args.backend}: builds no engine that has {', '.join(given)}; --backend tensorrt")
    return given


def add_bench_options(command: argparse.ArgumentParser) -> None:
    """Which passes are measured and how, and what of them is shown; `measuring` and `check_bench` read them."""
    command.add_argument("--batch", type=_count, nargs="+", default=[1, 4], metavar="N", help="sequences (1 4)")
    text = "tokens of a prefill, or of a target's beginning (16 128)"
    command.add_argument("--prompt", type=_count, nargs="+", metavar="N", help=text)
    text = "tokens that an encoder reads (128; fixed for one that listens)"
    command.add_argument("--source", type=_count, nargs="+", metavar="N", help=text)
    command.add_argument("--rounds", type=_count, help="turns of every point (30; 3 with --duration or --iterations)")
    command.add_argument("--warmUp", type=_time, metavar="MS", help="unmeasured passes before each turn (80 ms)")
    command.add_argument("--duration", type=_time, metavar="S", help="measure each point for so many seconds at least")
    command.add_argument("--iterations", type=_count, metavar="N", help="so many samples of each point at least")
    command.add_argument("--exportTimes", type=Path, metavar="FILE", help="write every sample, in ms, as JSON")
    text = f"TensorRT: the {SLOWEST_LAYERS} slowest layers of each point"
    command.add_argument("--dumpProfile", action="store_true", help=text)
    text = "TensorRT: enqueue layers one by one, instead of launching a pass as one CUDA graph"
    command.add_argument("--noCudaGraph", "--no-cuda-graph", action="store_true", help=text)


def measuring(args: argparse.Namespace) -> dict[str, Any]:
    """Arguments of `export.bench.bench` from the options."""
    longer = args.duration is not None or args.iterations is not None
    found: dict[str, Any] = {"rounds": args.rounds or (3 if longer else 30)}
    if args.warmUp is not None:
        found["warm_up"] = args.warmUp / 1000
    return found | {"duration": args.duration or 0.0, "iterations": args.iterations or 1}


def check_bench(args: argparse.Namespace) -> None:
    """Raise ExportError for an option of TensorRT with another backend."""
    from export.files import ExportError

    if args.backend != "tensorrt" and (args.dumpProfile or args.noCudaGraph):
        which = "dumpProfile" if args.dumpProfile else "noCudaGraph"
        raise ExportError(f"{which}=True: backend={args.backend} has none; use it with --backend tensorrt")


def gpu_lines(backend: str) -> tuple[dict[str, str], list[str]]:
    """(the GPU's state, lines that tell it); empty for a backend without one, or without nvidia-smi."""
    if backend != "tensorrt":
        return {}, []
    from export.gpu_state import gpu_state
    from export.runtimes.tensorrt_ import this_gpu

    state = gpu_state(this_gpu().uuid)
    return state, ["GPU: " + ", ".join(f"{field} {value}" for field, value in state.items())] if state else []


def layer_tables(build, points) -> list[str]:
    """A table of each point's slowest layers, with their share of the pass."""
    from archcalc.render import table
    from archcalc.units import duration
    from export.bench import engine_at
    from export.runtimes import engines

    engine_of, lines = engines(build, "tensorrt", cuda_graph=False), []
    for point in points:
        times = engine_at(point, build, engine_of).layer_times(*point.sizes)
        whole, slowest = sum(times.values()), sorted(times.items(), key=lambda item: -item[1])
        rows = [[layer, duration(t), f"{t / whole:.1%}"] for layer, t in slowest[:SLOWEST_LAYERS]]
        if rest := slowest[SLOWEST_LAYERS:]:
            left = sum(t for _, t in rest)
            rows.append([f"{len(rest)} more", duration(left), f"{left / whole:.1%}"])
        sizes = [f"batch {point.batch}, {point.tokens} tokens"]
        sizes += [f"context {point.context}"] if point.context else []
        sizes += [f"source {point.source}"] if point.source else []
        lines += ["", f"{', '.join([point.phase, *sizes])}:"]
        lines.append(table(rows, ["layer", "mean", "share"], "table"))
    return lines
