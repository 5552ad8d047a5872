"""The tokenizer inside a GGUF file, made of its metadata.

Sources: the GGUF specification, "Tokenizer"; llama.cpp's names of pre-tokenizers, each with the regular expression of
the `tokenizer.json` of the models that it is named after.
"""

from __future__ import annotations

from typing import Any

from models.gguf_file import WeightsError

LONGEST = 1000  # characters of a token; every cut of it is tried
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)  # tokenizer.ggml.token_type
ROLES = ("bos", "eos", "eot", "eom", "unknown", "padding", "seperator", "cls", "mask")  # the third is spelled so
SPACE = "▁"  # SentencePiece's

WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|DIGITS| ?[^\s\p{L}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPLITS = {"llama-bpe": WORDS.replace("DIGITS", r"\p{N}{1,3}"), "qwen2": WORDS.replace("DIGITS", r"\p{N}")}
KINDS = [("gpt2", "smollm"), ("gpt2", "gpt-2"), *(("gpt2", name) for name in SPLITS), ("llama", "default")]


def engine_from_gguf(fields: dict[str, Any]):
    """A `tokenizers.Tokenizer` of GGUF metadata; its control tokens are special, its post-processor adds the bos.

    Raises: WeightsError for a kind that is not among KINDS, or fields that are missing or contradict each other.
    """
    kind = fields.get("tokenizer.ggml.model"), fields.get("tokenizer.ggml.pre") or "default"
    if kind not in KINDS:
        known = " or ".join(f"({model}, {pre})" for model, pre in KINDS)
        raise WeightsError(f"tokenizer.ggml.model, pre={kind}: not understood; use a file with {known}")
    try:
        engine = _sentencepiece(fields) if kind[0] == "llama" else _byte_level(fields, kind[1])
        _add_tokens(engine, fields)
        _add_bos(engine, fields, default=kind[0] == "llama" or kind[1] == "llama-bpe")
    except WeightsError:
        raise
    except Exception as error:  # the library raises plain Exception
        raise WeightsError(f"tokenizer.ggml: incomplete or contradictory ({error!r}); get the file again") from error
    return engine


def role(fields: dict[str, Any], name: str) -> int | None:
    """The id of the bos, eos, ... token; None where the file has none."""
    token = fields.get(f"tokenizer.ggml.{name}_token_id")
    if token is not None and not 0 <= token < len(fields["tokenizer.ggml.tokens"]):
        raise WeightsError(f"tokenizer.ggml.{name}_token_id={token}: there is no such token; get the file again")
    return token


def prefix(fields: dict[str, Any]) -> str:
    """What is put before a text, so that its first word is like any other: SentencePiece's space, or nothing."""
    sentencepiece = fields.get("tokenizer.ggml.model") == "llama"
    return " " if sentencepiece and fields.get("tokenizer.ggml.add_space_prefix", True) else ""


def _byte_level(fields: dict[str, Any], pre: str):
    """Byte pair encoding over UTF-8 bytes, GPT-2's way. Source: Radford et al. 2019."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    vocabulary = {token: i for i, token in enumerate(fields["tokenizer.ggml.tokens"])}
    merges = [tuple(merge.split(" ", 1)) for merge in fields["tokenizer.ggml.merges"]]
    # Llama 3's vocabulary has words that no merges lead to.
    engine = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=pre == "llama-bpe"))
    steps = []
    if pre == "smollm":
        steps.append(pre_tokenizers.Digits(individual_digits=True))
    if pre in SPLITS:
        steps.append(pre_tokenizers.Split(Regex(SPLITS[pre]), "isolated"))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pre not in SPLITS))
    engine.pre_tokenizer = pre_tokenizers.Sequence(steps)
    if pre == "qwen2":
        engine.normalizer = normalizers.NFC()
    engine.decoder = decoders.ByteLevel()
    return engine


def _sentencepiece(fields: dict[str, Any]):
    """SentencePiece's byte pair encoding: the best score is merged first; an unknown character becomes its bytes.

    Source: Kudo and Richardson 2018, arXiv:1808.06226.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    tokens = fields["tokenizer.ggml.tokens"]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    merges = _merges_from_scores(tokens, fields["tokenizer.ggml.scores"], fields["tokenizer.ggml.token_type"])
    unknown = role(fields, "unknown")
    engine = Tokenizer(
        models.BPE(
            vocab=vocabulary,
            merges=merges,
            unk_token=None if unknown is None else tokens[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    engine.pre_tokenizer = pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme="never", split=False)
    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if prefix(fields):
        steps.append(decoders.Strip(content=" ", left=1))
    engine.decoder = decoders.Sequence(steps)
    return engine


def _merges_from_scores(tokens: list[str], scores: list[float], types: list[int]) -> list[tuple[str, str]]:
    """Every way to make a token of two others, the best score first. Control tokens are not made of text."""
    longest = max(map(len, tokens))
    if longest > LONGEST:
        raise WeightsError(
            f"tokenizer.ggml.tokens: one of {longest} characters, more than {LONGEST}; get the file again"
        )
    plain = {token: score for token, score, type_ in zip(tokens, scores, types, strict=True) if type_ == NORMAL}
    pairs = [
        (-score, token[:cut], token[cut:])
        for token, score in plain.items()
        for cut in range(1, len(token))
        if token[:cut] in plain and token[cut:] in plain
    ]
    return [(left, right) for _, left, right in sorted(pairs, key=lambda pair: pair[0])]


def _add_tokens(engine, fields: dict[str, Any]) -> None:
    """Tell the engine which tokens are special, and which are one token wherever a text has them."""
    from tokenizers import AddedToken

    tokens, types = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    with_role = {role(fields, name) for name in ROLES}
    special, defined = [], []
    for i, (token, type_) in enumerate(zip(tokens, types, strict=True)):
        if type_ in (UNKNOWN, CONTROL, UNUSED) or (type_ == USER_DEFINED and i in with_role):
            special.append(AddedToken(token, special=True, normalized=False))
        elif type_ == USER_DEFINED:
            defined.append(AddedToken(token, special=False, normalized=False))
    engine.add_special_tokens(special)
    engine.add_tokens(defined)


def _add_bos(engine, fields: dict[str, Any], default: bool) -> None:
    """A post-processor that begins a text with the bos token, where the file, or else its kind, says so."""
    from tokenizers.processors import TemplateProcessing

    bos = role(fields, "bos")
    if bos is not None and fields.get("tokenizer.ggml.add_bos_token", default):
        token = fields["tokenizer.ggml.tokens"][bos]
        engine.post_processor = TemplateProcessing(single=[token, "$A"], special_tokens=[(token, bos)])
