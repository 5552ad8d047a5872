"""How checkpoints lay tensors out: each function gives the parts of a file's tensor that are ours, without a copy.

Every one takes the tensor, the block that it belongs to, and the keys of the config.json. A part is a view in our
order; it may have more axes than ours, of which the first ones are then one: rows [N, H, D] stand for [N·H, D].
Letters are those of `archcalc.dims`. A tensor of another shape raises RuntimeError.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from archcalc.config import Block

Parts = Sequence[torch.Tensor]


def same(t: torch.Tensor, block: Block, keys: dict) -> Parts:
    """The tensor itself."""
    return (t,)


def transposed(t: torch.Tensor, block: Block, keys: dict) -> Parts:
    """[in, out] of GPT-2; a bias stays as it is."""
    return (t.T if t.ndim == 2 else t,)


def row(t: torch.Tensor, block: Block, keys: dict) -> Parts:
    """[1, V]: its only row."""
    return (t.squeeze(0),)


def less_one(t: torch.Tensor, block: Block, keys: dict) -> Parts:
    """The scale of a norm that was stored with the one added to it (GGUF's gemma)."""
    return (t.float() - 1,)  # around 1, half precision would lose the weight


def plus_one(t: torch.Tensor, block: Block, keys: dict) -> Parts:
    """The scale of a LayerNorm that is stored less one (Nemotron)."""
    return (t.float() + 1,)  # as above


def depthwise(t: torch.Tensor, block: Block, keys: dict) -> Parts:
    """[x, 1, k], the weight of a convolution of each channel by itself: [x, k]."""
    return (t.squeeze(1),)


def halves(t: torch.Tensor, block: Block, keys: dict) -> Parts:
    """[2F, D]: gate, then up."""
    return t.unflatten(0, (2, -1)).unbind()


def qkv(t: torch.Tensor, block: Block, keys: dict) -> Parts:
    """[N·H + 2K·H, ...]: queries of all heads, keys of all heads, values of all heads."""
    a = block.self_attn
    queries, keys_ = a.num_attention_heads * a.head_dim, a.num_key_value_heads * a.head_dim
    return t.split((queries, keys_, keys_))


def transposed_qkv(t: torch.Tensor, block: Block, keys: dict) -> Parts:
    """GPT-2's [D, 3D]: the columns are queries, keys and values."""
    return qkv(*transposed(t, block, keys), block, keys)


def qkv_groups(t: torch.Tensor, block: Block, keys: dict) -> Parts:
    """[K·(G + 2)·H, ...]: a group's G query heads, its key head, its value head; then the next group (Falcon).

    With as many key heads as query heads that is a query, key and value head in turns (GPT-NeoX), with one key head
    all queries first.
    """
    a = block.self_attn
    group = a.num_attention_heads // a.num_key_value_heads
    grouped = t.unflatten(0, (a.num_key_value_heads, group + 2, a.head_dim))
    return grouped.split((group, 1, 1), dim=1)


def query_and_gate(t: torch.Tensor, block: Block, keys: dict) -> Parts:
    """[N·2·H, D]: a head's query rows, then the rows of its output gate (Qwen3-Next)."""
    return t.unflatten(0, (block.self_attn.num_attention_heads, 2, -1)).unbind(1)


def experts(t: torch.Tensor, block: Block, keys: dict) -> Parts:
    """[E, ...]: one tensor an expert."""
    return t.unbind()


def expert_halves(t: torch.Tensor, block: Block, keys: dict) -> Parts:
    """[E, 2F, D]: of each expert gate, then up."""
    return [half for expert in t.unbind() for half in halves(expert, block, keys)]


def expert_columns(t: torch.Tensor, block: Block, keys: dict) -> Parts:
    """[E, in, out]: each expert transposed (gpt-oss)."""
    return t.transpose(1, 2).unbind()


def expert_turns(t: torch.Tensor, block: Block, keys: dict) -> Parts:
    """[E, D, 2F], or the bias [E, 2F]: the last axis is gate and up in turns (gpt-oss)."""
    turns = [expert[..., start::2] for expert in t.unbind() for start in (0, 1)]
    return [part.T if part.ndim == 2 else part for part in turns]


def _halves_from_neighbours(heads: torch.Tensor) -> torch.Tensor:
    """[heads, H, ...] in which the two of a rotary pair are neighbours, in an order in which they are halves."""
    return heads.unflatten(1, (-1, 2)).transpose(1, 2)


def rotary_neighbours(t: torch.Tensor, block: Block, keys: dict) -> Parts:
    """[N·H, ...] or [K·H, ...]: neighbouring rows of a head are a rotary pair (GPT-J, Cohere, GGUF's llama).

    A copy where the last rows of a head have no positions.
    """
    a = block.self_attn
    if not a.rotary:
        return (t,)
    heads, turned = t.unflatten(0, (-1, a.head_dim)), int(a.head_dim * a.rotary.partial_rotary_factor)
    pairs = _halves_from_neighbours(heads[:, :turned])
    return (pairs if turned == a.head_dim else torch.cat((pairs.flatten(1, 2), heads[:, turned:]), dim=1),)


def latent_queries(t: torch.Tensor, block: Block, keys: dict) -> Parts:
    """[N·(P + Q), C]: of each head the rows without and with rotary positions (DeepSeek)."""
    a = block.self_attn
    heads = t.unflatten(0, (a.num_attention_heads, a.qk_nope_head_dim + a.qk_rope_head_dim))
    nope, rope = heads.split((a.qk_nope_head_dim, a.qk_rope_head_dim), dim=1)
    return nope, _rotary_rows(rope, keys)


def latent_and_rotary_key(t: torch.Tensor, block: Block, keys: dict) -> Parts:
    """[J + Q, D]: the latent, then the rotary key that all heads share (DeepSeek)."""
    latent, rope = t.split((block.self_attn.kv_lora_rank, block.self_attn.qk_rope_head_dim))
    return latent, _rotary_rows(rope.unsqueeze(0), keys)


def _rotary_rows(heads: torch.Tensor, keys: dict) -> torch.Tensor:
    """DeepSeek's pairs are neighbours unless rope_interleave says false."""
    return heads if keys.get("rope_interleave") is False else _halves_from_neighbours(heads)


def latent_keys_values(t: torch.Tensor, block: Block, keys: dict) -> Parts:
    """[N·(P + U), J]: of each head the rows of its keys and of its values (DeepSeek)."""
    a = block.self_attn
    heads = t.unflatten(0, (a.num_attention_heads, a.qk_nope_head_dim + a.v_head_dim))
    return heads.split((a.qk_nope_head_dim, a.v_head_dim), dim=1)


def mamba2_in_proj(t: torch.Tensor, block: Block, keys: dict) -> Parts:
    """Rows of the gate z, of x, b, c, and one a head of the time step."""
    m = block.self_attn
    inner, state = m.num_heads * m.head_dim, m.n_groups * m.state_size
    return t.split((inner, inner, state, state, m.num_heads))


def delta_qkvz(t: torch.Tensor, block: Block, keys: dict) -> Parts:
    """Of each key head: its query, its key, the values of its value heads, and their gates (Qwen3-Next)."""
    m = block.self_attn
    values = m.linear_num_value_heads // m.linear_num_key_heads * m.linear_value_head_dim
    sizes = (m.linear_key_head_dim, m.linear_key_head_dim, values, values)
    return _of_each_key_head(t, m, sizes)


def delta_ba(t: torch.Tensor, block: Block, keys: dict) -> Parts:
    """Of each key head: b of its value heads, then a of them (Qwen3-Next)."""
    m = block.self_attn
    return _of_each_key_head(t, m, (m.linear_num_value_heads // m.linear_num_key_heads,) * 2)


def _of_each_key_head(t: torch.Tensor, mixer, sizes: tuple[int, ...]) -> Parts:
    return t.unflatten(0, (mixer.linear_num_key_heads, sum(sizes))).split(sizes, dim=1)


LAYOUTS: dict[str, Callable[[torch.Tensor, Block, dict], Parts]] = {
    layout.__name__: layout
    for layout in (
        same, transposed, row, less_one, plus_one, depthwise, halves, qkv, transposed_qkv, qkv_groups, query_and_gate,
        experts, expert_halves, expert_columns, expert_turns, rotary_neighbours, latent_queries,
        latent_and_rotary_key, latent_keys_values, mamba2_in_proj, delta_qkvz, delta_ba,
    )
}  # fmt: skip
