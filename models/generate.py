"""Text generation with a cache, token by token: greedy or sampled, a batch of prompts of any lengths at once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

import torch

from archcalc.config import ModelConfig
from archcalc.errors import ArchcalcError, one_of
from models.cache import Cache
from models.language_model import DecoderOnly, EncoderDecoder, left_padded
from models.progress import progress
from models.sampling import likeliest

Sampling = Callable[[torch.Tensor], torch.Tensor]  # logits [B, V] to token ids [B]
CACHES = ("growing", "static")


def generate(
    model: DecoderOnly | EncoderDecoder,
    prompt_ids: list[list[int]],
    max_new_tokens: int,
    *,
    eos: Collection[int] = (),
    sampler: Sampling = likeliest,
    cache: str = "growing",
    start_id: int | None = None,
) -> Iterator[list[int | None]]:
    """The continuation of each prompt, one token id a row a step; None once a row has reached an id of `eos`.

    An encoder-decoder reads the prompts as sources, once, and writes targets that begin after `start_id`.

    Args:
        prompt_ids: B rows of token ids, not empty, of any lengths: padded on the left.
        sampler: makes ids [B] of logits [B, V]; see models.sampling.
        cache: growing, or static (slots for everything, allocated once, as an engine does).
        start_id: the config's `decoder_start_token_id` if None.

    Raises: ArchcalcError, before the first token, if a prompt is empty, an id is unknown to the model, or everything
        together is longer than the model's positions.
    """
    one_of("cache", cache, CACHES)
    _check(model, prompt_ids, max_new_tokens)
    return _generate(model, prompt_ids, max_new_tokens, frozenset(eos), sampler, cache == "static", start_id)


def greedy(
    model: DecoderOnly | EncoderDecoder, prompt_ids: list[list[int]], max_new_tokens: int, eos: int | None = None
) -> list[list[int]]:
    """The likeliest continuation of each prompt, as token ids without prompt and `eos`: an engine's oracle.

    Raises: ArchcalcError as `generate`.
    """
    new: list[list[int]] = [[] for _ in prompt_ids]
    steps = generate(model, prompt_ids, max_new_tokens, eos=() if eos is None else (eos,))
    for tokens in progress(steps, "generate (PyTorch)"):
        for row, token in zip(new, tokens, strict=True):
            if token is not None:
                row.append(token)
    return new


@torch.no_grad()
def _generate(model, prompt_ids, max_new_tokens, eos, sampler, static, start_id) -> Iterator[list[int | None]]:
    starts = prompt_ids
    if isinstance(model, EncoderDecoder):
        starts = [[target_start(model.config, start_id)]] * len(prompt_ids)
    weight = next(model.parameters())
    new = {"dtype": weight.dtype, "device": weight.device}
    most = max(map(len, starts)) + max_new_tokens
    capacity = most if static or _changes(model.config, most) else None
    past = Cache.empty(model.config, len(starts), capacity, **new)
    forward = _forward(model, prompt_ids, past, weight.device)
    ids_BT, position_ids_BT = left_padded(starts, device=weight.device)
    running = [True] * len(starts)
    for _ in range(max_new_tokens):
        chosen_B = sampler(forward(ids_BT, position_ids_BT))
        tokens = chosen_B.tolist()
        running = [on and token not in eos for on, token in zip(running, tokens, strict=True)]
        if not any(running):
            return
        yield [token if on else None for on, token in zip(running, tokens, strict=True)]
        ids_BT, position_ids_BT = chosen_B[:, None], position_ids_BT[:, -1:] + 1


def _changes(config: ModelConfig, tokens: int) -> bool:
    """Whether so many tokens are turned otherwise than fewer ones: then keys must be made for all from the start."""
    rotaries = [getattr(block.self_attn, "rotary", None) for block in config.decoder.layers]
    return any(rotary and rotary.short_context and tokens > rotary.short_context for rotary in rotaries)


def _forward(model, prompt_ids: list[list[int]], past: Cache, device) -> Callable[..., torch.Tensor]:
    """A function from the next tokens and their positions, [B, T] each, to the logits after the last, [B, V]."""
    if isinstance(model, EncoderDecoder):
        longest = max(map(len, prompt_ids))
        source_BX = torch.tensor([ids + [0] * (longest - len(ids)) for ids in prompt_ids], device=device)
        lengths_B1 = torch.tensor([[len(ids)] for ids in prompt_ids], device=device)
        cross = model.encode(source_BX, torch.arange(longest, device=device) < lengths_B1)
        return lambda ids_BT, position_ids_BT: model.decode(ids_BT, cross, past, position_ids_BT)[:, -1]

    def last_logits(ids_BT, position_ids_BT):
        # Only the last token predicts a new one: logits of the whole prompt would be thrown away.
        return model.head(model.trunk(ids_BT, position_ids_BT, past)[:, -1:])[:, -1]

    return last_logits


def target_start(config: ModelConfig, start_id: int | None = None) -> int:
    """The token that every target of an encoder-decoder begins after: the given one, or the config's.

    Raises: ArchcalcError if there is none, or the model does not know it.
    """
    if start_id is None:
        start_id = (config.keys or {}).get("decoder_start_token_id")
    if type(start_id) is not int or not 0 <= start_id < config.vocab_size:
        raise ArchcalcError(f"decoder_start_token_id={start_id}: needed to begin a target; set it in the config.json")
    return start_id


def _check(model, prompt_ids: list[list[int]], max_new_tokens: int) -> None:
    if not isinstance(model, DecoderOnly | EncoderDecoder) or model.config.frontend or not model.config.head.has_logits:
        raise ArchcalcError(f"{model.config.name or type(model).__name__}: does not make text of text; choose another")
    if not prompt_ids or not all(prompt_ids):
        raise ArchcalcError("prompt_ids: every prompt needs a token; give at least one id each")
    vocabulary, limit = model.config.vocab_size, model.config.max_position_embeddings
    unknown = next((i for ids in prompt_ids for i in ids if not 0 <= i < vocabulary), None)
    if unknown is not None:
        raise ArchcalcError(f"prompt_ids: id {unknown}, but vocab_size={vocabulary}; is this the model's tokenizer?")
    longest = 1 if isinstance(model, EncoderDecoder) else max(map(len, prompt_ids))
    if longest + max_new_tokens > limit:
        raise ArchcalcError(
            f"{longest} tokens and {max_new_tokens} new ones: more than max_position_embeddings={limit}; "
            "shorten the prompt or generate fewer tokens"
        )
