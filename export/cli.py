"""The `export` command, `python -m export` and `archexport`. Exit codes: 0 agreed, 1 a disagreement, 2 cannot do it."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

from archcalc.cli import Parser, add_model, model, run

DEFAULT_PRESET = "smollm2-135m"
DEFAULT_BUILD = f"out/{DEFAULT_PRESET}-fp32"

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


def _build(args: argparse.Namespace) -> str:
    config = model(args)
    from export.build import build
    from export.expressible import check_exportable
    from export.reference import described, reference

    check_exportable(config)
    out = args.out or Path("out") / f"{config.name}-{args.precision}"
    weights, origin = reference(config, args.weights)
    made = build(config, out, args.precision, args.capacity, weights, origin)
    caches = ", ".join(map(str, made.capacities))
    lines = [f"{out}: {config.name} in {args.precision}, {described(origin)}, caches of {caches} tokens"]
    if origin["kind"] == "random":
        lines.append("The weights are random: the numbers and the speed are real, the text would not be.")
    lines += [f"  {name}: {file['bytes']:,} bytes" for name, file in made.manifest["files"].items()]
    if args.backend == "tensorrt":
        from export.engine_from_onnx import build_engine

        for capacity in made.capacities:
            lines.append(build_engine(made, capacity, compute_capability=args.compute_capability).describe())
    return "\n".join(lines)


def _verify(args: argparse.Namespace) -> int:
    build = _open(args)
    from export.reference import reference_of
    from export.verify import verify

    weights = reference_of(build.manifest, build.config, args.weights)
    verdict = verify(build, _engine_of(args, build)(max(build.capacities)), weights)
    print(f"{args.build}: logits differ by {verdict.worst_logits:.3g}, cache by {verdict.worst_cache:.3g}, relative")
    print(f"  tolerance {verdict.tolerance:g} of {build.precision.name}: {verdict.reason}")
    print(f"  greedy tokens equal: {verdict.tokens_agreed} of {verdict.tokens}")
    print(f"  largest activation {verdict.largest_activation:.4g} of {verdict.largest_allowed:.4g}")
    for problem in verdict.problems:
        print(f"  DIFFERS: {problem}")
    return 0 if verdict.passed else 1


def _bench(args: argparse.Namespace) -> str:
    build = _open(args)
    from archcalc.render import table
    from archcalc.units import duration
    from export.bench import Point, bench

    points = []
    for context in build.capacities:
        points += [Point(batch, 1, context) for batch in args.batch]
        points += [Point(batch, tokens, context) for batch in args.batch for tokens in args.prompt if tokens <= context]
    rows = []
    for timing in bench(build, _engine_of(args, build), points, args.rounds):
        point = timing.point
        rate = point.batch * point.tokens / timing.median
        spread = [duration(timing.quantile(q)) for q in (0.5, 0.9, 0.99)]
        rows.append([point.phase, point.batch, point.tokens, point.context, *spread, f"{rate:.4g}"])
    return table(rows, ["pass", "batch", "tokens", "context", "p50", "p90", "p99", "tokens a second"], "table")


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

    found = check(config, args.out or Path("out") / f"check-{config.name}", args.precision, args.weights, args.backend)
    report = args.report or Path("reports") / f"check-{config.name}-{args.precision}.md"
    command = "python -m export " + shlex.join(args.argv)
    with replaced_file(report) as new:
        new.write_text(rendered(found, command, "markdown") + "\n")
    print(rendered(found, command))
    print(f"Report: {report}")
    return 1 if found.problems else 0


def _generate(args: argparse.Namespace) -> str:
    build = _open(args)
    from archcalc.errors import ConfigError
    from export.generate import greedy
    from export.reference import weights_file
    from models.tokenizer import Tokenizer

    path = weights_file(build.config, args.weights)
    if build.manifest["weights"]["kind"] == "random" or path is None or path.suffix != ".gguf":
        raise ConfigError(f"build={args.build}: was made without a GGUF file, so it has no tokenizer; build with one")
    tokenizer = Tokenizer.from_gguf(path)
    prompt = tokenizer.chat(args.prompt)
    capacity = build.capacity_for(len(prompt) + args.max_tokens)
    new = greedy(_engine_of(args, build)(capacity), [prompt], args.max_tokens, tokenizer.eos_id)[0]
    return tokenizer.decode(new)


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

    def weights(one: argparse.ArgumentParser) -> None:
        text = "auto (SmolLM2's if its package is installed), random, or a .gguf or .safetensors file"
        one.add_argument("--weights", default="auto", metavar="FILE", help=text)

    def backend(one: argparse.ArgumentParser) -> None:
        one.add_argument("--backend", choices=("onnxruntime", "tensorrt"), default="onnxruntime")

    def new(one: argparse.ArgumentParser) -> None:
        add_model(one, default=DEFAULT_PRESET)
        one.add_argument("--precision", choices=("fp32", "fp16"), default="fp32")
        one.add_argument("--out", type=Path, metavar="DIR", help="where to (out/NAME-PRECISION)")

    def built(name: str, do, text: str) -> argparse.ArgumentParser:
        one = command(name, do, text)
        one.add_argument("--build", default=DEFAULT_BUILD, metavar="DIR", help=f"a folder of `build` ({DEFAULT_BUILD})")
        backend(one)
        return one

    one = command("build", _build, "export a model: graphs, weights and a manifest, or a TensorRT engine too")
    new(one)
    weights(one)
    backend(one)
    one.add_argument("--capacity", type=_capacities, metavar="N,N", help="cache sizes in tokens, a graph each (1024)")
    one.add_argument("--compute-capability", metavar="SM", help="GPU to build engines for (this one's, or sm_89)")
    weights(built("verify", _verify, "compare a build with PyTorch in fp32; exit 1 if they differ"))
    one = built("bench", _bench, "time prefill and decode")
    one.add_argument("--batch", type=_count, nargs="+", default=[1, 4])
    one.add_argument("--prompt", type=_count, nargs="+", default=[16, 128])
    one.add_argument("--rounds", type=_count, default=30, help="samples a point (30)")
    built("compare", _compare, "predicted against measured counts and latency; exit 1 if they disagree")
    one = command("check", _check, "build, verify, count, calibrate, time and compare; exit 1 on any disagreement")
    new(one)
    weights(one)
    backend(one)
    one.add_argument("--report", type=Path, metavar="FILE", help="(reports/check-NAME-PRECISION.md)")
    one = built("generate", _generate, "continue a prompt greedily")
    weights(one)
    one.add_argument("--prompt", required=True)
    one.add_argument("--max-tokens", type=_count, default=64)
    return top


def main(argv: list[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    top = parser()
    top.set_defaults(argv=argv)
    return run(top, argv)
