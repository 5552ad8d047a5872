"""The `archcalc` command. Exit codes: 0 done, 2 a request that cannot be answered, with one line on stderr."""

from __future__ import annotations

import argparse
import os
import sys

from archcalc.errors import ArchcalcError

REPORT_HELP = """\
examples:
  archcalc report --preset llama3-8b
  archcalc report --preset llama3-70b --batch 8 --prompt 4096 --precision fp8 --device h200
  archcalc report --config path/to/config.json --set num_key_value_heads=4 --format json
"""


class Parser(argparse.ArgumentParser):
    """Says what is wrong with the arguments in one line, like every other error, instead of the whole usage."""

    def error(self, message: str):
        self.exit(2, f"{self.prog}: {' '.join(message.split())}; see {self.prog} --help\n")


def add_model(parser: argparse.ArgumentParser, default: str | None = None) -> None:
    """The options that name a model: --preset or --config, and --set. `export` has them too."""
    which = parser.add_mutually_exclusive_group(required=default is None)
    which.add_argument("--preset", metavar="NAME", help="a model by name; `archcalc presets` lists them")
    which.add_argument("--config", metavar="FILE", help="a Hugging Face config.json, or the folder that holds it")
    parser.add_argument(
        "--set",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        dest="overrides",
        help="set a config.json key, e.g. num_key_value_heads=4; may be repeated",
    )
    parser.set_defaults(default_preset=default)


def model(args: argparse.Namespace):
    """The ModelConfig that the options name."""
    from archcalc.hf import load_config, parse_override
    from archcalc.presets import preset

    overrides = dict(map(parse_override, args.overrides))
    if args.config:
        return load_config(args.config, overrides)
    return preset(args.preset or args.default_preset, overrides)


def _report(args: argparse.Namespace) -> str:
    from archcalc.render import render
    from archcalc.report import Request, report

    names = ("batch", "prompt", "context", "precision", "kv_precision", "device", "dense", "last_logits")
    return render(report(model(args), Request(**{name: getattr(args, name) for name in names})), args.format)


def _derive(args: argparse.Namespace) -> str:
    from archcalc.derivation import derivation

    return derivation(model(args), dense=args.dense, latex=args.latex)


def _presets(args: argparse.Namespace) -> str:
    from archcalc.cost import parameters
    from archcalc.presets import names, preset, source
    from archcalc.render import table

    rows = [[name, parameters(preset(name)), source(name)] for name in names()]
    return table(rows, ["preset", "parameters", "source"], "table")


def _families(args: argparse.Namespace) -> str:
    from archcalc.families import MODULES, family
    from archcalc.render import table

    rows = [[name, module, (family(name).__doc__ or "").split("\n")[0]] for name, module in sorted(MODULES.items())]
    return table(rows, ["model_type", "module", "what it is"], "table")


def _dense_switch(parser: argparse.ArgumentParser) -> None:
    mask = parser.add_mutually_exclusive_group()
    mask.add_argument(
        "--causal",
        action="store_false",
        dest="dense",
        default=False,
        help="attention FLOPs of visible pairs only (the default)",
    )
    mask.add_argument("--dense", action="store_true", help="attention FLOPs of every pair, masked or not")


def parser() -> argparse.ArgumentParser:
    top = Parser(prog="archcalc", description="Parameters, FLOPs and KV-cache memory of transformers.")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    raw = argparse.RawDescriptionHelpFormatter
    one = commands.add_parser("report", help="all numbers of one model", epilog=REPORT_HELP, formatter_class=raw)
    add_model(one)
    one.add_argument("--batch", type=int, default=1, help="sequences at once (1)")
    one.add_argument("--prompt", type=int, help="input tokens a sequence (1024, or all positions if fewer)")
    one.add_argument("--context", type=int, help="tokens a decode step attends over, its own included (the prompt)")
    one.add_argument("--precision", default="bf16", help="fp32, bf16, fp16, fp8, int8 or int4 weights (bf16)")
    one.add_argument("--kv-precision", help="format of keys and values (that of the activations)")
    one.add_argument("--device", default="h100-sxm", help="whose peaks the roofline has (h100-sxm)")
    one.add_argument("--last-logits", action="store_true", help="prefill makes logits of its last position only")
    one.add_argument("--format", choices=("table", "markdown", "json"), default="table")
    _dense_switch(one)
    one.set_defaults(run=_report)
    two = commands.add_parser("derive", help="the formulas behind the numbers, by sympy")
    add_model(two)
    two.add_argument("--latex", action="store_true", help="formulas in LaTeX")
    _dense_switch(two)
    two.set_defaults(run=_derive)
    commands.add_parser("presets", help="the models known by name").set_defaults(run=_presets)
    commands.add_parser("families", help="the model types that a config.json may have").set_defaults(run=_families)
    return top


def run(top: argparse.ArgumentParser, argv: list[str] | None) -> int:
    """Parse, run and print; turn a mendable error into one line and exit code 2. `export` shares it."""
    args = top.parse_args(argv)
    try:
        outcome = args.run(args)
        if isinstance(outcome, str):
            if hasattr(sys.stdout, "reconfigure"):
                sys.stdout.reconfigure(errors="replace")  # a terminal that knows no `·` shows `?`
            print(outcome)
            sys.stdout.flush()
            return 0
        return outcome
    except ArchcalcError as error:
        print(f"{top.prog}: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        package = (error.name or "").split(".")[0]
        if package in ("archcalc", "models", "export"):
            raise  # ours: a bug, not a missing extra
        print(f'{top.prog}: {package}: not installed; pip install "archcalc[export]"', file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader, `| head` say, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def main(argv: list[str] | None = None) -> int:
    return run(parser(), argv)
