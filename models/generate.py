"""Greedy decoding with a static cache: the oracle that an engine's tokens are compared with."""

from __future__ import annotations

import torch

from archcalc.errors import ArchcalcError
from models.cache import KVCache
from models.decoder_only import DecoderOnly
from models.progress import progress


@torch.no_grad()
def greedy(
    model: DecoderOnly, prompt_ids: list[list[int]], max_new_tokens: int, eos: int | None = None
) -> list[list[int]]:
    """The likeliest continuation of each prompt, as token ids without prompt and `eos`.

    Prompts may differ in length: they are padded on the right, and each row goes on from its own end (see KVCache).
    Raises: ArchcalcError if a prompt is empty or everything together is longer than the model's positions.
    """
    if not prompt_ids or not all(prompt_ids):
        raise ArchcalcError("prompt_ids: every prompt needs a token; give at least one id each")
    device, dtype = model.embed_tokens.weight.device, model.embed_tokens.weight.dtype
    lengths = [len(ids) for ids in prompt_ids]
    longest = max(lengths)
    padded_BT = torch.tensor([ids + [0] * (longest - len(ids)) for ids in prompt_ids], device=device)
    position_ids_B1 = torch.tensor(lengths, device=device)[:, None]
    cache = KVCache.empty(model.config, len(prompt_ids), longest + max_new_tokens, dtype, device)
    rows = torch.arange(len(prompt_ids), device=device)
    # Each row's last prompt token predicts its first new one; logits of the others would be thrown away.
    last_B1D = model.trunk(padded_BT, cache=cache)[rows, position_ids_B1[:, 0] - 1][:, None]
    new: list[list[int]] = [[] for _ in prompt_ids]
    running = set(range(len(prompt_ids)))
    for step in progress(range(max_new_tokens), "generate (PyTorch)"):
        token_ids_B1 = model.head(last_B1D).argmax(-1)
        for row in sorted(running):
            token = int(token_ids_B1[row, 0])
            if token == eos:
                running.remove(row)
            else:
                new[row].append(token)
        if not running or step + 1 == max_new_tokens:
            break
        last_B1D = model.trunk(token_ids_B1, position_ids_B1 + step, cache)
    return new
