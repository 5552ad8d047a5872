"""Numbers spelled out in English and in German, as token ids: a translation task that needs no download.

German joins the words of a number and says the ones before the tens, so it is more than a word for a word:
21,305 is "twenty-one thousand, three hundred and five" and "einundzwanzigtausenddreihundertfünf".
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from num2words import num2words
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

PAD, BOS, EOS, SEP = range(4)
SPECIAL = ["<pad>", "<bos>", "<eos>", "<sep>"]


@dataclass(frozen=True)
class Pair:
    """One number: token ids of both languages, without special tokens, and the German text."""

    source: list[int]
    target: list[int]
    german: str


@dataclass(frozen=True)
class Corpus:
    """Pairs to learn from and pairs that are held out, no number in both; one vocabulary for both languages."""

    tokenizer: Tokenizer
    train: list[Pair]
    test: list[Pair]

    @property
    def vocab_size(self) -> int:
        return self.tokenizer.get_vocab_size()

    def text(self, ids: list[int]) -> str:
        """German is one word a number, so its tokens are joined."""
        return "".join(self.tokenizer.id_to_token(i) for i in ids)


def corpus(train: int, test: int, limit: int, vocab_size: int, seed: int) -> Corpus:
    """Distinct numbers from 0 to `limit` - 1. The byte-pair encoding is learned from the training pairs alone.

    Source: Sennrich et al. 2016, arXiv:1508.07909 (byte-pair encoding).
    """
    chosen = random.Random(seed).sample(range(limit), train + test)
    texts = [(num2words(n, lang="en"), num2words(n, lang="de")) for n in chosen]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, special_tokens=SPECIAL, show_progress=False)
    tokenizer.train_from_iterator([text for both in texts[:train] for text in both], trainer)
    sources, targets = (tokenizer.encode_batch([both[side] for both in texts]) for side in (0, 1))
    pairs = [Pair(s.ids, t.ids, both[1]) for s, t, both in zip(sources, targets, texts, strict=True)]
    return Corpus(tokenizer, pairs[:train], pairs[train:])
