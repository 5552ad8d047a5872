"""The `export` command, `python -m export` and `archexport`. Exit codes: 0 agreed, 1 a disagreement, 2 cannot do it."""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from pathlib import Path

from archcalc.cli import Parser, add_model, model, run
from export.cli_engine import (
    add_bench_options,
    add_build_options,
    check_bench,
    engine_settings,
    gpu_lines,
    layer_tables,
    measuring,
)

DEFAULT_PRESET = "smollm2-135m"
DEFAULT_BUILD = f"out/{DEFAULT_PRESET}-fp32"
PRECISIONS = ("fp32", "fp16", "bf16", "int8", "int8-dynamic", "int4")  # export.precision's, which needs torch

EXAMPLES = """\
examples:
  python -m export build --preset smollm2-135m --precision fp16
  python -m export build --precision fp16 --backend tensorrt --compute-capability sm_89
  python -m export verify --build out/smollm2-135m-fp16
  python -m export check

`export` typed into a shell is the shell's own builtin: use `python -m export`, `archexport` or `env export`.
"""


def _open(args: argparse.Namespace):
    from export.build import open_build

    return open_build(args.build)


def _engine_of(args: argparse.Namespace, build):
    from export.runtimes import engines

    return engines(build, args.backend)


def _capacities(text: str) -> tuple[int, ...]:
    try:
        return tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: give whole numbers with commas, as in 256,1024") from None


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 2**31 - 1:
        raise argparse.ArgumentTypeError(f"{text!r}: give a whole number from 1")
    return int(text)


def _precision(args: argparse.Namespace):
    """The precision that the options ask for. Raises: ConfigError for options that exclude each other."""
    from archcalc.errors import ConfigError
    from export.precision import export_precision

    if args.backend == "tensorrt" and (args.target != "any" or args.precision == "int8-dynamic"):
        wrong = f"target={args.target}" if args.target != "any" else f"precision={args.precision}"
        raise ConfigError(f"{wrong}: has operators that TensorRT does not know; give another, or --backend onnxruntime")
    half = "fp16" if args.backend == "tensorrt" and args.precision in ("int8", "int4") else None
    return export_precision(args.precision, args.activations or half, args.group_size)


def _build(args: argparse.Namespace) -> str:
    config = model(args)
    settings = engine_settings(args)
    from export.build import build
    from export.expressible import check_exportable
    from export.precision import kept_higher
    from export.reference import described
    from export.source import source

    check_exportable(config)
    out = args.out or Path("out") / f"{config.name}-{args.precision}"
    weights = source(config, args.weights)
    kind = _precision(args)
    options = {"target": args.target, "link_weights": args.link_weights}
    made = build(config, out, kind, args.capacity, source=weights, **options)
    origin = made.manifest["weights"]
    caches = f"caches of {', '.join(map(str, made.capacities))} tokens" if made.capacities else "no cache"
    lines = [f"{out}: {config.name} in {args.precision}, {described(origin)}, {caches}", f"  {kept_higher(kind)}"]
    if origin["kind"] == "random":
        lines.append("The weights are random: the numbers and the speed are real, the text would not be.")
    lines += [f"  {name}: {file['bytes']:,} bytes" for name, file in made.manifest["files"].items()]
    if args.backend == "tensorrt":
        from export.engine_from_onnx import build_engine, engine_capacities

        for capacity in engine_capacities(made):
            lines.append(build_engine(made, capacity, **settings).describe())
    return "\n".join(lines)


def _tolerance(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r}: give a number from 0")
    return value


def _verify(args: argparse.Namespace) -> int:
    build = _open(args)
    from archcalc.errors import ArchcalcError
    from export.as_stored import give_stored_numbers
    from export.reference import reference_of
    from export.verify import verify_both
    from export.verify_report import default_path, lines, report, write_report

    path, verdicts = args.json or default_path(build), []
    # Before anything runs: no older report may stand where this run is killed, and a bad path is told at once.
    write_report(path, report(build, args.backend, [], "not finished"))
    try:
        weights = reference_of(build.manifest, build.config, args.weights)
        give_stored_numbers(weights, build)
        for capacity in build.capacities or (None,):
            name = f"{args.build}, cache of {capacity} tokens" if capacity else str(args.build)
            for verdict in verify_both(build, args.backend, capacity, weights, atol=args.atol, rtol=args.rtol):
                verdicts.append(verdict)
                print("\n".join(lines(verdict, name, build.precision)))
    except ArchcalcError as error:
        write_report(path, report(build, args.backend, verdicts, str(error)))
        raise
    write_report(path, report(build, args.backend, verdicts))
    print(f"Report: {path}")
    return 0 if all(verdict.passed for verdict in verdicts) else 1


def _bench(args: argparse.Namespace) -> str:
    check_bench(args)
    build = _open(args)
    from archcalc.render import table
    from archcalc.units import duration
    from export.bench import bench, grid, write_times
    from export.runtimes import engines

    points = grid(build, args.batch, args.prompt, args.source)
    sizes = [name for name in ("batch", "tokens", "context", "source") if any(getattr(p, name) for p in points)]
    engine_of = engines(build, args.backend, cuda_graph=not args.noCudaGraph)
    timings, rows = bench(build, engine_of, points, **measuring(args)), []
    state, lines = gpu_lines(args.backend)
    if args.exportTimes:
        origin = {"build": str(args.build), "backend": args.backend, "precision": build.precision.name, "gpu": state}
        write_times(args.exportTimes, timings, origin)
    for timing in timings:
        point = timing.point
        rate = point.batch * point.tokens / timing.median
        spread = [duration(timing.quantile(q)) for q in (0.5, 0.9, 0.99)]
        shape = [getattr(point, name) or "" for name in sizes]
        rows.append([point.phase, *shape, *spread, f"{rate:.4g}"])
    headers = ["pass", *sizes, "p50", "p90", "p99", "tokens a second"]
    profiled = layer_tables(build, points) if args.dumpProfile else []
    return "\n".join([table(rows, headers, "table"), *lines, *profiled])


def _compare(args: argparse.Namespace) -> int:
    build = _open(args)
    from archcalc.render import table
    from export.compare import HEADERS, compare_build, comparison_rows, conclusion

    found = compare_build(build, Path(f"{args.build}-probes"), args.backend)
    print(table(comparison_rows(found), HEADERS, "table"))
    print(conclusion(found.problems))
    return 1 if found.problems else 0


def _check(args: argparse.Namespace) -> int:
    config = model(args)
    from archcalc.files import replaced_file
    from export.check import check, rendered

    out, kind = args.out or Path("out") / f"check-{config.name}", _precision(args)
    found = check(config, out, kind, args.weights, args.backend, target=args.target)
    report = args.report or Path("reports") / f"check-{config.name}-{args.precision}.md"
    command = "python -m export " + shlex.join(args.argv)
    with replaced_file(report) as new:
        new.write_text(rendered(found, command, "markdown") + "\n")
    print(rendered(found, command))
    print(f"Report: {report}")
    return 1 if found.problems else 0


def _tokenizer(args: argparse.Namespace, build):
    """That of the weights that the build was made from."""
    from archcalc.errors import ConfigError
    from export.reference import weights_file
    from models.tokenizer import Tokenizer

    path = weights_file(build.config, args.weights)
    if build.manifest["weights"]["kind"] == "random" or path is None:
        raise ConfigError(f"build={args.build}: was made without weights, so it has no tokenizer; build it with some")
    if path.suffix == ".gguf":
        return Tokenizer.from_gguf(path)
    return Tokenizer.from_folder(path if path.is_dir() else path.parent)


def _generate(args: argparse.Namespace) -> int:
    from models.cli import most_tokens, prompt_ids, sampler, write_text

    chosen = sampler(args)  # before the build, which takes seconds
    build = _open(args)
    from export.generate import generate

    tokenizer = _tokenizer(args, build)
    ids = prompt_ids(build.config, tokenizer, args)
    count = most_tokens(args, max(build.capacities) - len(ids))
    engine = _engine_of(args, build)(build.capacity_for(len(ids) + count))
    start = time.perf_counter()
    written = write_text(generate(engine, [ids], count, eos=tokenizer.eos_ids, sampler=chosen), tokenizer, ids)
    if sys.stderr.isatty():
        rate = written / (time.perf_counter() - start)
        print(f"{written} tokens, {rate:.1f} a second with the {len(ids)} of the prompt", file=sys.stderr)
    return 0


def _text_options(one: argparse.ArgumentParser) -> None:
    """Those of `python -m models generate`, whose module needs torch: too slow for a --help."""
    one.add_argument("--prompt", required=True, metavar="TEXT", help="what the user says")
    form = one.add_mutually_exclusive_group()
    form.add_argument("--raw", action="store_true", help="the prompt is a text to be continued, not a turn of a chat")
    form.add_argument("--system", metavar="TEXT", help="what the model is told of itself (as in training)")
    one.add_argument("--max-tokens", type=_count, metavar="N", help="at most so many new tokens (256)")
    chance = one.add_argument_group("sampling", "greedy without them: always the likeliest token")
    chance.add_argument("--temperature", type=float, metavar="T", help="divides the logits: 0 greedy, 1 as trained (1)")
    chance.add_argument("--top-k", type=int, metavar="K", help="only the K likeliest tokens")
    chance.add_argument("--top-p", type=float, metavar="P", help="only the fewest tokens that reach probability P")
    chance.add_argument("--seed", type=int, metavar="N", help="the same seed gives the same text (0)")


def _weights_option(one: argparse.ArgumentParser) -> None:
    text = "auto (SmolLM2's if its package is installed), random, or a .gguf or .safetensors file"
    one.add_argument("--weights", default="auto", metavar="FILE", help=text)


def _backend_option(one: argparse.ArgumentParser) -> None:
    one.add_argument("--backend", choices=("onnxruntime", "tensorrt"), default="onnxruntime")


def _new_options(one: argparse.ArgumentParser) -> None:
    """Those of commands that make a build: of which model, and how."""
    add_model(one, default=DEFAULT_PRESET)
    one.add_argument("--precision", choices=PRECISIONS, default="fp32", help="of weights (fp32)")
    text = "format of activations and cache beside int8 and int4 weights (fp32; fp16 for TensorRT)"
    one.add_argument("--activations", choices=("fp32", "fp16", "bf16"), help=text)
    text = "weights that share a scale in int8 and int4: 16, 32, 64, 128 or 256 (32)"
    one.add_argument("--group-size", type=_count, metavar="N", help=text)
    text = "onnxruntime: its own fused attention, faster and for no other runtime (any)"
    one.add_argument("--target", choices=("any", "onnxruntime"), default="any", help=text)
    one.add_argument("--out", type=Path, metavar="DIR", help="where to (out/NAME-PRECISION)")
    _weights_option(one)
    _backend_option(one)


def _build_options(one: argparse.ArgumentParser) -> None:
    one.add_argument("--capacity", type=_capacities, metavar="N,N", help="cache sizes in tokens, a graph each (1024)")
    text = "link the checkpoint's safetensors files into the build instead of copying them; --precision must be theirs"
    one.add_argument("--link-weights", action="store_true", help=text)
    add_build_options(one)


def _verify_options(one: argparse.ArgumentParser) -> None:
    one.add_argument("--json", type=Path, metavar="FILE", help="report, written whatever is found (BUILD-verify.json)")
    rule = (
        "instead of the precision's tolerance: |got - want| <= ATOL + RTOL * |want|, each 0 if only the other is given"
    )
    one.add_argument("--atol", type=_tolerance, help=rule)
    one.add_argument("--rtol", type=_tolerance, help="see --atol")


def parser() -> argparse.ArgumentParser:
    top = Parser(
        prog="export",
        description="Reference models as ONNX graphs and TensorRT engines, verified and timed.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, do, text: str) -> argparse.ArgumentParser:
        one = commands.add_parser(name, help=text, description=text)
        one.set_defaults(run=do)
        return one

    def built(name: str, do, text: str) -> argparse.ArgumentParser:
        one = command(name, do, text)
        one.add_argument("--build", default=DEFAULT_BUILD, metavar="DIR", help=f"a folder of `build` ({DEFAULT_BUILD})")
        _backend_option(one)
        return one

    one = command("build", _build, "export a model: graphs, weights and a manifest, or a TensorRT engine too")
    _new_options(one)
    _build_options(one)
    one = built("verify", _verify, "compare a build with PyTorch in fp32; exit 1 if they differ")
    _weights_option(one)
    _verify_options(one)
    one = built("bench", _bench, "time prefill and decode, and what an encoder reads")
    add_bench_options(one)
    built("compare", _compare, "predicted against measured counts and latency; exit 1 if they disagree")
    one = command("check", _check, "build, verify, count, calibrate, time and compare; exit 1 on any disagreement")
    _new_options(one)
    one.add_argument("--report", type=Path, metavar="FILE", help="(reports/check-NAME-PRECISION.md)")
    one = built("generate", _generate, "answer or continue a prompt, token by token")
    _weights_option(one)
    _text_options(one)
    return top


def main(argv: list[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    top = parser()
    top.set_defaults(argv=argv)
    try:
        return run(top, argv)
    except KeyboardInterrupt:
        print()
        return 130  # 128 + SIGINT, as shells have it
