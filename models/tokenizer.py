"""Text to token ids and back, from a Hugging Face folder's `tokenizer.json` or from inside a GGUF file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from models.gguf_file import WeightsError, metadata
from models.tokenizer_gguf import engine_from_gguf, prefix, role

START, END = "<|im_start|>", "<|im_end|>"  # ChatML's
# What a model was told of itself in training. A file says which by having the sentence in its chat template.
SYSTEMS = (
    "You are a helpful AI assistant named SmolLM, trained by Hugging Face",
    "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.",
    "You are a helpful assistant.",
)
CONTEXT, LONGEST_CHARACTER = 8, 4  # tokens; a character of UTF-8 has at most 4 bytes


@contextmanager
def understood(what: object) -> Iterator[None]:
    """Whatever the library raises on a broken tokenizer, plain exceptions or its panics, as a WeightsError."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:  # a panic is no Exception
        raise WeightsError(f"{what}: no readable tokenizer ({error}); get it again") from error


class Tokenizer:
    """Text to token ids and back. Special tokens are never made from text, only by `raw` and `chat`.

    Args:
        engine: a `tokenizers.Tokenizer`. eos_ids: the tokens that end a text. prefix: put before a text.
        template: the file's chat template; it is a program, so it is only searched, never run.
    """

    def __init__(self, engine, eos_ids: list[int], template: str = "", prefix: str = ""):
        _make_special(engine, eos_ids)
        engine.encode_special_tokens = True  # that is: as the text that they look like
        self.engine, self._prefix = engine, prefix
        added = engine.get_added_tokens_decoder().items()
        self.special = {token.content: i for i, token in added if token.special}
        ends = [*eos_ids, *([self.special[END]] if END in self.special else [])]
        self.eos_ids = tuple(dict.fromkeys(ends))
        self.system = next((text for text in SYSTEMS if text in template), None)

    @classmethod
    def from_gguf(cls, path: str | Path) -> Tokenizer:
        """The tokenizer that is inside a GGUF file. Raises: WeightsError if it is of a kind that is not understood."""
        return cls.from_fields(metadata(path))

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> Tokenizer:
        """The same, from a GGUF file's metadata."""
        engine = engine_from_gguf(fields)
        ends = [role(fields, name) for name in ("eos", "eot", "eom")]
        template = str(fields.get("tokenizer.chat_template", ""))
        return cls(engine, [i for i in ends if i is not None], template, prefix(fields))

    @classmethod
    def from_folder(cls, folder: str | Path) -> Tokenizer:
        """The tokenizer of a Hugging Face folder. Raises: WeightsError if there is none, or none that can be read."""
        from tokenizers import Tokenizer as Engine

        file = Path(folder) / "tokenizer.json"
        if not file.is_file():
            raise WeightsError(f"{file}: no such file; give a folder that has one, or a .gguf file")
        with understood(file):
            engine = Engine.from_file(str(file))
            engine.no_truncation()
            engine.no_padding()
        return cls(engine, _eos_ids(Path(folder)), _template(Path(folder)))

    @property
    def eos_id(self) -> int | None:
        """The first of `eos_ids`."""
        return self.eos_ids[0] if self.eos_ids else None

    def encode(self, text: str) -> list[int]:
        """Token ids of plain text; `<|im_end|>` in it is text like any other."""
        return self._ids(text, add_special_tokens=False)

    def source(self, text: str) -> list[int]:
        """Token ids of a whole text, with the special tokens around it that the file asks for: an encoder's input."""
        return self._ids(text)

    def raw(self, text: str) -> list[int]:
        """Token ids of a text that goes on: with a bos in front where the file asks for one, without an eos behind."""
        ids = self.source(text)
        while len(ids) > 1 and ids[-1] in self.eos_ids:
            ids.pop()
        return ids

    def _ids(self, text: str, **how: bool) -> list[int]:
        text = self._text(text)
        with understood("tokenizer"):
            return self.engine.encode(text, **how).ids

    def _text(self, text: str) -> str:
        try:
            text.encode()
        except UnicodeEncodeError as error:  # an argument of the command line that was no UTF-8
            raise WeightsError(f"text: no valid Unicode at character {error.start}; give it in UTF-8") from None
        return text and self._prefix + text

    def decode(self, ids: list[int]) -> str:
        """Text of token ids, without the special ones."""
        with understood("tokenizer"):
            return self.engine.decode(ids)

    def chat(self, prompt: str, system: str | None = None) -> list[int]:
        """Ids of one user turn in the ChatML format, up to where the assistant answers.

        Args:
            system: what the model is told of itself; None for what its chat template has, if that is known.

        Raises: WeightsError if the tokenizer has no ChatML tokens.
        """
        if not {START, END} <= self.special.keys():
            raise WeightsError(
                f"tokenizer: has no {START} and {END}, so its chat format is unknown; give raw text (--raw)"
            )
        start, end = self.special[START], self.special[END]
        system = self.system if system is None else system
        ids = []
        for role_, text in (("system", system), ("user", prompt)):
            if text is not None:
                ids += [start, *self.encode(f"{role_}\n{text}"), end, *self.encode("\n")]
        return [*ids, start, *self.encode("assistant\n")]


class TextStream:
    """Text of tokens as they come, in whole characters: a token may be a part of one.

    Not `tokenizers.decoders.DecodeStream`, which raises for bytes that make no character.

    Args:
        before: the tokens in front, whose text is not repeated; a first word keeps its space after them.
    """

    def __init__(self, tokenizer: Tokenizer, before: list[int] | tuple[int, ...] = ()):
        self._decode = tokenizer.decode
        self._told, self._held = list(before[-CONTEXT:]), []

    def push(self, token: int) -> str:
        """The text that this token completes; empty if a character is still incomplete."""
        self._held.append(token)
        text = self._new()
        if text.endswith("\ufffd") and len(self._held) < LONGEST_CHARACTER:
            return ""
        self._told, self._held = [*self._told, *self._held][-CONTEXT:], []
        return text

    def finish(self) -> str:
        """What was held back and never completed."""
        return self._new()

    def _new(self) -> str:
        # Decoded together with tokens before it: alone, a word would lose its space.
        return self._decode([*self._told, *self._held])[len(self._decode(self._told)) :]


def _make_special(engine, eos_ids: list[int]) -> None:
    """Mark what ends a turn or a text, in case the file does not: a text must not be able to."""
    from tokenizers import AddedToken

    added = engine.get_added_tokens_decoder().items()
    roles = [token.content for i, token in added if i in eos_ids or token.content in (START, END)]
    engine.add_special_tokens([AddedToken(content, special=True, normalized=False) for content in roles])


def _eos_ids(folder: Path) -> list[int]:
    """The ids that end a text: generation_config.json's, or else config.json's."""
    from archcalc.hf import read_json

    for name in ("generation_config.json", "config.json"):
        keys = read_json(str(folder / name)) if (folder / name).is_file() else {}
        text = keys.get("text_config")
        for part in (keys, text if isinstance(text, dict) else {}):
            found = part.get("eos_token_id")
            if found is not None:
                ids = found if isinstance(found, list) else [found]
                if not all(type(i) is int and i >= 0 for i in ids):
                    raise WeightsError(f"{folder / name}: eos_token_id={found!r}: must be ids; mend it")
                return ids
    return []


def _template(folder: Path) -> str:
    """The text of the chat template, wherever a folder keeps it."""
    files = [folder / "chat_template.jinja", folder / "tokenizer_config.json"]
    return "".join(file.read_text(encoding="utf-8", errors="replace") for file in files if file.is_file())
