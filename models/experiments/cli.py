"""`python -m models.experiments`. Exit codes: 0 all claims hold, 1 one does not, 2 cannot do it."""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from importlib import import_module
from pathlib import Path

from archcalc.cli import Parser
from archcalc.errors import ArchcalcError
from models.experiments import EXPERIMENTS

ALL = "all"
# Small matrices gain nothing from more, sums keep their order on every machine, and a busy one disturbs times less.
THREADS = 1


def parser() -> argparse.ArgumentParser:
    width = max(map(len, EXPERIMENTS))
    names = "\n".join(f"  {name:{width}}  {text}" for name, text in EXPERIMENTS.items())
    found = Parser(
        prog="experiments",
        description="Run an experiment; write its report and its picture.",
        epilog=f"experiments:\n{names}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    found.add_argument("name", nargs="?", choices=[*EXPERIMENTS, ALL], metavar="NAME", help=f"one of those, or {ALL}")
    found.add_argument("--list", action="store_true", help="name the experiments")
    found.add_argument("--out", type=Path, default=Path("reports"), metavar="DIR", help="where reports go (reports)")
    return found


def _run(name: str, out: Path, argv: list[str]) -> bool:
    """Run one, write it, say what came out; whether every claim holds."""
    import torch

    from models.experiments.report import write

    torch.set_num_threads(THREADS)
    started = time.perf_counter()
    found = import_module(f"models.experiments.{name.replace('-', '_')}").experiment()
    seconds = time.perf_counter() - started
    path = write(found, name, out, f"python -m models.experiments {shlex.join(argv)}", seconds)
    for claim in found.claims:
        print(f"  {'holds' if claim.holds else 'FAILS'}: {claim.says}: {claim.found}")
    print(f"{name}: {seconds:.1f} s, {path}")
    return all(claim.holds for claim in found.claims)


def main(argv: list[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    top = parser()
    args = top.parse_args(argv)
    if args.list:
        print("\n".join(f"{name:16} {text}" for name, text in EXPERIMENTS.items()))
        return 0
    if args.name is None:
        top.error(f"NAME: missing; give one of {', '.join(EXPERIMENTS)}, or {ALL}")
    try:
        chosen = [name for name in EXPERIMENTS if args.name in (name, ALL)]
        held = [_run(name, args.out, argv) for name in chosen]
        return 0 if all(held) else 1
    except ArchcalcError as error:
        print(f"{top.prog}: {' '.join(str(error).split())}", file=sys.stderr)
    except OSError as error:
        print(f"{top.prog}: out={args.out}: {error.strerror}; give another folder", file=sys.stderr)
    except ModuleNotFoundError as error:
        package = (error.name or "").split(".")[0]
        if package in ("archcalc", "models", "export"):
            raise  # ours: a bug, not a missing extra
        print(f'{top.prog}: {package}: not installed; pip install "archcalc[export,experiments]"', file=sys.stderr)
    return 2
