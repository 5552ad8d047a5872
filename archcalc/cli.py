"""The `archcalc` command. Exit codes: 0 done, 1 a disagreement, 2 a request that cannot be answered, with one line
on stderr."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from archcalc.errors import ArchcalcError

REPORT_HELP = """\
examples:
  archcalc report --preset llama3-8b
  archcalc report --preset llama3-70b --batch 8 --prompt 4096 --precision fp8 --device h200
  archcalc report --config path/to/config.json --set num_key_value_heads=4 --format json
  archcalc report --preset llama3-8b --context 20000 --kv reserved --kv-bytes 3.8125GiB
  archcalc report --preset mixtral-8x7b --explain active
  archcalc report --config path/to/config.json --against transformers
"""
EXPLAIN_HELP = "summands of parameters, active, encode, prefill, decode (FLOPs), kv_cache, state or weight_bytes"
TRAINING_HELP = """\
examples:
  archcalc training --preset llama3-8b --batch 4 --tokens 8192 --recompute full
  archcalc training --preset gpt2 --recompute none --dropout --policy fp32
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


def _report(args: argparse.Namespace) -> str | int:
    from archcalc.render import render
    from archcalc.report import report
    from archcalc.request import Request

    config = model(args)
    if args.against:
        return _against(args, config)
    names = ("batch", "prompt", "context", "precision", "kv_precision", "device", "dense", "last_logits", "macs")
    request = {name: getattr(args, name) for name in (*names, "latent", "eager", "explain")}
    return render(report(config, Request(**request, paged=_paged(args))), args.format)


def _paged(args: argparse.Namespace):
    """The engine that the options of a reserved cache describe; None where there are none."""
    from archcalc.errors import ConfigError
    from archcalc.memory import Paged, parse_bytes

    names = ("block_size", "tp", "windowed_as_full", "prefill_chunk", "kv_bytes", "kv_blocks")
    given = {n: getattr(args, n) for n in names if getattr(args, n) is not None and getattr(args, n) is not False}
    if args.kv == "logical" and given:
        raise ConfigError(
            f"kv='logical' with --{next(iter(given)).replace('_', '-')}: it is for --kv reserved; drop one"
        )
    if args.kv != "reserved" and not given:
        return None
    room = given.pop("kv_bytes", None)
    return Paged(room=room and parse_bytes(room), room_blocks=given.pop("kv_blocks", None), **given)


def _against(args: argparse.Namespace, config) -> int:
    from archcalc.against import compare, whole_keys
    from archcalc.render import render_against

    found = compare(config, whole_keys(args.config, config) if args.config else None)
    print(render_against(found, args.format))
    return 0 if found["agree"] else 1


def _training(args: argparse.Namespace) -> str:
    from archcalc.render import render_training
    from archcalc.training import Step, training

    names = ("batch", "tokens", "source", "policy", "optimizer", "recompute", "dropout")
    return render_training(training(model(args), Step(**{name: getattr(args, name) for name in names})), args.format)


def _derive(args: argparse.Namespace) -> str:
    from archcalc.derivation import derivation

    return derivation(model(args), dense=args.dense, latex=args.latex)


def _validate(args: argparse.Namespace) -> int:
    from archcalc.files import replaced_file
    from archcalc.validate import document, kernel_rows, rendered

    rows = kernel_rows(args.device, args.engine)
    print(rendered(rows, args.format))
    if args.out:
        with replaced_file(args.out) as new:
            new.write_text(document(rows, "archcalc " + " ".join(args.argv)))
    return 1 if any(row.passed is False for row in rows) else 0


def _presets(args: argparse.Namespace) -> str:
    from archcalc.presets_table import rows
    from archcalc.render import table

    found = [[row.name, row.total, row.active, row.source] for row in rows()]
    return table(found, ["preset", "total", "active", "source"], "table")


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


def _format_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--format", choices=("table", "markdown", "json"), default="table")


def _cache_options(parser: argparse.ArgumentParser) -> None:
    cache = parser.add_argument_group("reserved KV cache", "what a paged engine allocates; any of these asks for it")
    cache.add_argument("--kv", choices=("logical", "reserved"), help="the logical cache alone (default), or both")
    cache.add_argument("--block-size", type=int, metavar="N", help="tokens of a block (16)")
    cache.add_argument("--tp", type=int, metavar="N", help="ranks: KV heads split while they last, then replicated (1)")
    cache.add_argument("--windowed-as-full", action="store_true", help="windowed layers are charged the whole length")
    cache.add_argument("--prefill-chunk", type=int, metavar="N", help="tokens of a prompt that run at once (8192)")
    room = cache.add_mutually_exclusive_group()
    room.add_argument("--kv-bytes", metavar="SIZE", help="room of one rank, e.g. 3.81GiB: how much fits")
    room.add_argument("--kv-blocks", type=int, metavar="N", help="the same as a count of blocks")


def _add_training(commands, raw) -> None:
    parser = commands.add_parser(
        "training", help="FLOPs and memory of a training step", epilog=TRAINING_HELP, formatter_class=raw
    )
    add_model(parser)
    parser.add_argument("--batch", type=int, default=1, help="sequences of a step (1)")
    parser.add_argument("--tokens", type=int, default=1024, help="of each sequence (1024)")
    parser.add_argument("--source", type=int, help="source tokens of an encoder-decoder (as many as --tokens)")
    parser.add_argument("--policy", default="mixed", help="fp32, mixed, mixed-fp32-grad or bf16 (mixed)")
    parser.add_argument("--optimizer", default="adamw", help="adamw, adam8bit, sgd-momentum or sgd (adamw)")
    parser.add_argument(
        "--recompute", default="selective", help="activations: none, selective (attention's core) or full (selective)"
    )
    parser.add_argument("--dropout", action="store_true", help="masks of dropout are stored")
    _format_option(parser)
    parser.set_defaults(run=_training)


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
    one.add_argument("--latent", metavar="FORM", help="latent attention absorbed or expanded in both passes")
    one.add_argument("--eager", action="store_true", help="also what a FLOP counter sees of transformers' eager code")
    one.add_argument("--macs", action="store_true", help="multiply-adds in place of FLOPs, which are twice as many")
    _cache_options(one)
    one.add_argument("--explain", metavar="QUANTITY", help=EXPLAIN_HELP)
    one.add_argument(
        "--against", choices=("transformers",), help="compare parameters by part; exit 1 where they differ"
    )
    _format_option(one)
    _dense_switch(one)
    one.set_defaults(run=_report)
    _add_training(commands, raw)
    two = commands.add_parser("derive", help="the formulas behind the numbers, by sympy")
    add_model(two)
    two.add_argument("--latex", action="store_true", help="formulas in LaTeX")
    _dense_switch(two)
    two.set_defaults(run=_derive)
    three = commands.add_parser("validate", help="laws of latency against kernels that were measured on GPUs")
    three.add_argument("--device", action="append", metavar="NAME", help="a device (all that were measured)")
    three.add_argument("--engine", action="append", metavar="NAME", help="tensorrt-llm, vllm or sglang (all)")
    three.add_argument("--out", type=Path, metavar="FILE", help="the tables in Markdown, too")
    three.add_argument("--format", choices=("table", "markdown"), default="table")
    three.set_defaults(run=_validate)
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
    argv = sys.argv[1:] if argv is None else argv
    top = parser()
    top.set_defaults(argv=argv)
    return run(top, argv)
