"""model_type nemotron-nas: llama blocks that a search made unequal; `block_configs` describes each.

A block may lack its attention, and its feed-forward is `ffn_mult` times as wide as the model: two thirds of that,
rounded up to a multiple of 256. Blocks with a single matrix in place of a sublayer are refused.
Source: Bercovich et al. 2024, arXiv:2411.19146 (Puzzle), and the class published with the models.
"""

from __future__ import annotations

from archcalc.config import Attention, FeedForward, Norm
from archcalc.errors import ConfigError
from archcalc.families.rope import rotary
from archcalc.families.shared import attention, decoder, feed_forward, layer_count, model
from archcalc.keys import Keys, label, shown

IGNORED = frozenset({"num_key_value_heads", "intermediate_size"})  # null: each block has its own


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    k.must_be("num_key_value_heads", None, "each entry of block_configs has its own")
    k.must_be("intermediate_size", None, "each entry of block_configs has its own")
    parts, blocks = {"rotary": rotary(k, 1e4)}, _blocks(k)
    mixers = [_mixer(k, block.nested("attention"), parts) for block in blocks]
    mlps = [_mlp(k, block.nested("ffn")) for block in blocks]
    for block in blocks:
        block.finish()
    norm = Norm("rmsnorm", k.float("rms_norm_eps", default=1e-6))
    return model(k, decoder(k, mixers.__getitem__, mlps.__getitem__, norm), tie=False)


def _blocks(k: Keys) -> list[Keys]:
    found, depth = k.raw.get("block_configs"), layer_count(k)
    k.used.add("block_configs")
    if type(found) is not list or not all(type(block) is dict for block in found) or len(found) != depth:
        raise ConfigError(f"block_configs={shown(found)}: must be a list of objects, one a layer; give {depth}")
    return [Keys(block, owner=k.owner, prefix=f"block_configs[{n}].") for n, block in enumerate(found)]


def _plain(part: Keys | None, name: str) -> bool:
    """Whether a block has this sublayer, which must then be an ordinary one."""
    if part is None:
        raise ConfigError(f"block_configs: an entry has no {label(name)}; give an object")
    part.must_be("replace_with_linear", False)
    part.must_be("sparsify", None)
    return not part.bool("no_op", default=False)


def _mixer(k: Keys, part: Keys | None, parts: dict) -> Attention | None:
    has = _plain(part, "attention")
    group = part.int("n_heads_in_group") if has else part.int("n_heads_in_group", default=None)
    for name in ("window_length", "num_sink_tokens"):
        part.must_be(name, None)
    for name in ("unshifted_sink", "use_prefill_window_in_sink_attention"):
        part.must_be(name, False)
    part.finish()
    heads = k.int("num_attention_heads")
    if has and heads % group:
        raise ConfigError(f"{part.prefix}n_heads_in_group={group}: must divide num_attention_heads={heads}")
    return attention(k, kv=heads // group, **parts) if has else None


def _mlp(k: Keys, part: Keys | None) -> FeedForward | None:
    has = _plain(part, "ffn")
    times = part.float("ffn_mult") if has else part.float("ffn_mult", default=None)
    part.finish()
    if not has:
        return None
    width = int(2 * times * k.int("hidden_size") / 3)
    view = k.view(k.raw | {"intermediate_size": -(-width // 256) * 256}, k.aliases)
    return feed_forward(view, act="silu", gated=True)
