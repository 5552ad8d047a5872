"""Byte-level BPE from a GGUF file's metadata, for SmolLM2."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from models.gguf_file import WeightsError, metadata

ORDINARY = 1  # token type of plain text; others (control, user-defined, unused) are special
SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"


class Tokenizer:
    """Text to token ids and back. Special tokens are never made from text, only by `chat`."""

    def __init__(self, fields: dict[str, Any]):
        from tokenizers import Tokenizer as Engine
        from tokenizers import decoders, models, pre_tokenizers

        kind = fields.get("tokenizer.ggml.model"), fields.get("tokenizer.ggml.pre")
        if kind != ("gpt2", "smollm"):
            raise WeightsError(f"tokenizer.ggml.model, pre={kind}: not understood; use a file with ('gpt2', 'smollm')")
        try:
            tokens, types = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
            merges = [tuple(merge.split(" ", 1)) for merge in fields["tokenizer.ggml.merges"]]
            self.special = {
                token: i for i, (token, type_) in enumerate(zip(tokens, types, strict=True)) if type_ != ORDINARY
            }
            self.eos_id: int = fields["tokenizer.ggml.eos_token_id"]
            self._start, self._end = self.special["<|im_start|>"], self.special["<|im_end|>"]
            vocabulary = {token: i for i, token in enumerate(tokens)}
            self._engine = Engine(models.BPE(vocab=vocabulary, merges=merges))
        except Exception as error:  # the library raises plain Exception
            raise WeightsError(
                f"tokenizer.ggml: incomplete or contradictory ({error!r}); get the file again"
            ) from error
        split = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        self._engine.pre_tokenizer = pre_tokenizers.Sequence(split)
        self._engine.decoder = decoders.ByteLevel()

    @classmethod
    def from_gguf(cls, path: str | Path) -> Tokenizer:
        """The tokenizer that is inside a GGUF file. Raises: WeightsError if it is of another kind."""
        return cls(metadata(path))

    def encode(self, text: str) -> list[int]:
        """Token ids of plain text; `<|im_end|>` in it is text like any other."""
        return self._engine.encode(text).ids

    def decode(self, ids: list[int]) -> str:
        """Text of token ids, without the special ones."""
        special = set(self.special.values())
        return self._engine.decode([i for i in ids if i not in special])

    def chat(self, prompt: str) -> list[int]:
        """Ids of one user turn in the ChatML format, up to where the assistant answers.

        Written out, because the file's own template is a program, and the file is not to be trusted.
        """
        ids = []
        for role, text in (("system", SYSTEM), ("user", prompt)):
            ids += [self._start, *self.encode(f"{role}\n{text}"), self._end, *self.encode("\n")]
        return [*ids, self._start, *self.encode("assistant\n")]
