"""model_type glm_moe_dsa: deepseek_v32's block, where some layers share the keys that an earlier layer chose.

Source: the released GLM-5 configs.
"""

from __future__ import annotations

from dataclasses import replace

from archcalc.config import Indexer
from archcalc.errors import ConfigError, one_of
from archcalc.families import latent
from archcalc.families.experts import weighed
from archcalc.families.latent import feed_forwards, latent_attention, latent_decoder
from archcalc.families.rope import rotary
from archcalc.families.shared import every_layer_is, layer_count
from archcalc.keys import Keys

ALIASES = {"n_routed_experts": ("num_local_experts", "num_experts")}
IGNORED = latent.IGNORED
STACK = {"vocab_size": 154880, "hidden_size": 6144, "num_hidden_layers": 78, "max_position_embeddings": 202752}
HEADS = {"num_attention_heads": 64, "qk_nope_head_dim": 192, "qk_rope_head_dim": 64, "v_head_dim": 256}
RANKS = {"q_lora_rank": 2048, "kv_lora_rank": 512, "intermediate_size": 12288, "first_k_dense_replace": 3}
EXPERTS = {"n_routed_experts": 256, "n_shared_experts": 1, "moe_intermediate_size": 2048, "num_experts_per_tok": 8}
INDEX = {"index_n_heads": 32, "index_head_dim": 128, "index_topk": 2048}
RELEASE = {"glm_moe_dsa": STACK | HEADS | RANKS | EXPERTS | INDEX}
KINDS = {"F": "full", "S": "shared"}


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    k.must_be("mlp_bias", False)
    every_layer_is(k, "indexed_attention", "deepseek_sparse_attention")
    full = latent_attention(k, rotary(k, 1e4), indexer=Indexer(*map(k.int, INDEX)))
    made = {"full": full, "shared": replace(full, indexer=replace(full.indexer, shared=True))}
    kinds = indexer_kinds(k, layer_count(k))
    mlp = feed_forwards(k, listed=True, **weighed(k, "sigmoid", scale=2.5, groups=(1, 1)))
    return latent_decoder(k, mlp, eps=1e-5, mixer=lambda layer: made[kinds[layer]])


def indexer_kinds(k: Keys, depth: int) -> tuple[str, ...]:
    """`full` or `shared`, of each layer: as listed, as a pattern (FFSSS...), or every so many layers from an offset."""
    listed = k.strings("indexer_types", tuple(KINDS.values()))
    letters = type(k.raw.get("index_topk_pattern")) is str
    pattern = k.str("index_topk_pattern") if letters else k.strings("index_topk_pattern", tuple(KINDS.values()))
    period, offset = k.count("index_topk_freq", default=1), k.count("index_skip_topk_offset", default=2)
    for letter in pattern if letters else ():
        one_of("index_topk_pattern", letter, tuple(KINDS))
    kinds = listed or tuple(KINDS[letter] for letter in pattern) if letters else listed or pattern
    if kinds is None:
        kinds = tuple(KINDS["FS"[max(layer - offset + 1, 0) % max(period, 1) > 0]] for layer in range(depth))
    if len(kinds) != depth:
        raise ConfigError(
            f"indexer_types of {len(kinds)} entries with num_hidden_layers={depth}: one entry a layer; give {depth}"
        )
    if kinds[0] == "shared":
        raise ConfigError("indexer_types='shared': the first layer has no earlier one; make it full")
    return kinds
