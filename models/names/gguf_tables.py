"""What GGUF files call tensors and sizes: one table an architecture, written as those of `models.names`.

Source: the GGUF specification and the tensor lists of the package `gguf`; which rows the converters of llama.cpp
regroup (a rotary pair of llama are neighbours) and change (a norm of gemma is stored with the one added).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from models.names.rules import NOTHING, Table, changed

PLAIN: Table = {
    "token_embd.weight": "embed_tokens.weight",
    "output_norm.{p}": "norm.{p}",
    "output.weight": "lm_head.weight",
    "rope_freqs.weight": NOTHING,  # stretches of rotary frequencies, which a config.json says in words
    "rope_factors_long.weight": NOTHING,
    "rope_factors_short.weight": NOTHING,
    "blk.{i}.attn_norm.{p}": "layers.{i}.self_attn_norm.{p}",
    "blk.{i}.attn_q.{p}": "layers.{i}.self_attn.q_proj.{p}",
    "blk.{i}.attn_k.{p}": "layers.{i}.self_attn.k_proj.{p}",
    "blk.{i}.attn_v.{p}": "layers.{i}.self_attn.v_proj.{p}",
    "blk.{i}.attn_output.{p}": "layers.{i}.self_attn.o_proj.{p}",
    "blk.{i}.attn_q_norm.weight": "layers.{i}.self_attn.q_norm.weight",
    "blk.{i}.attn_k_norm.weight": "layers.{i}.self_attn.k_norm.weight",
    "blk.{i}.ffn_norm.{p}": "layers.{i}.mlp_norm.{p}",
    "blk.{i}.ffn_{ffn}.{p}": "layers.{i}.mlp.{ffn}_proj.{p}",
}
FUSED: Table = {"blk.{i}.attn_qkv.{p}": ("layers.{i}.self_attn.(q|k|v)_proj.{p}", "qkv")}
LLAMA = changed(
    PLAIN,
    {
        "blk.{i}.attn_q.{p}": ("layers.{i}.self_attn.q_proj.{p}", "rotary_neighbours"),
        "blk.{i}.attn_k.{p}": ("layers.{i}.self_attn.k_proj.{p}", "rotary_neighbours"),
        "blk.{i}.ffn_gate_inp.weight": "layers.{i}.mlp.router.weight",
        "blk.{i}.ffn_{ffn}_exps.weight": ("layers.{i}.mlp.experts.*.{ffn}_proj.weight", "experts"),
        "blk.{i}.ffn_{ffn}.{e}.weight": "layers.{i}.mlp.experts.{e}.{ffn}_proj.weight",
    },
)
GPT2 = changed(PLAIN, FUSED, {"position_embd.weight": "embed_positions.weight"})
PHI3 = changed(PLAIN, FUSED, {"blk.{i}.ffn_up.weight": ("layers.{i}.mlp.(gate|up)_proj.weight", "halves")})
GEMMA = changed(
    PLAIN,
    {
        "output_norm.weight": ("norm.weight", "less_one"),
        "blk.{i}.attn_norm.weight": ("layers.{i}.self_attn_norm.weight", "less_one"),
        "blk.{i}.attn_q_norm.weight": ("layers.{i}.self_attn.q_norm.weight", "less_one"),
        "blk.{i}.attn_k_norm.weight": ("layers.{i}.self_attn.k_norm.weight", "less_one"),
        "blk.{i}.post_attention_norm.weight": ("layers.{i}.self_attn_post_norm.weight", "less_one"),
        "blk.{i}.ffn_norm.weight": ("layers.{i}.mlp_norm.weight", "less_one"),
        "blk.{i}.post_ffw_norm.weight": ("layers.{i}.mlp_post_norm.weight", "less_one"),
    },
)

# general.architecture of a file: its table.
TABLES: dict[str, Table] = {
    "llama": LLAMA, "qwen2": PLAIN, "qwen3": PLAIN, "gpt2": GPT2, "phi3": PHI3, "gemma2": GEMMA, "gemma3": GEMMA,
}  # fmt: skip


@dataclass(frozen=True)
class Metadata:
    """How the metadata of an architecture become a config.json.

    Args:
        model_type: of the config.json. sizes: Hugging Face's key to GGUF's, which must be there.
        optional: the same for keys that may be absent. fixed: what every such model has.
        switches: a key that is true where the file has a tensor.
    """

    model_type: str
    sizes: dict[str, str]
    optional: dict[str, str] = field(default_factory=dict)
    fixed: dict[str, Any] = field(default_factory=dict)
    switches: dict[str, str] = field(default_factory=dict)


SIZES = {
    "vocab_size": "vocab_size",
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "max_position_embeddings": "context_length",
}
ROTARY_SIZES = SIZES | {
    "num_key_value_heads": "attention.head_count_kv",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "rope_theta": "rope.freq_base",
}
HEAD = {"head_dim": "attention.key_length"}  # absent where it is hidden_size / heads
BIASES = {"attention_bias": "blk.0.attn_q.bias", "mlp_bias": "blk.0.ffn_up.bias"}
EXPERTS = {"num_local_experts": "expert_count", "num_experts_per_tok": "expert_used_count"}
SILU = {"hidden_act": "silu"}

# The metadata of gemma2 and gemma3 lack query_pre_attn_scalar, so their config.json must be given.
METADATA = {
    "llama": Metadata("llama", ROTARY_SIZES, HEAD, SILU, BIASES),
    "qwen2": Metadata("qwen2", ROTARY_SIZES, fixed=SILU),
    "qwen3": Metadata("qwen3", ROTARY_SIZES, HEAD, SILU),
    "phi3": Metadata("phi3", ROTARY_SIZES | {"sliding_window": "attention.sliding_window"}, fixed=SILU),
    "gpt2": Metadata(
        "gpt2",
        SIZES | {"layer_norm_epsilon": "attention.layer_norm_epsilon"},
        fixed={"activation_function": "gelu_new"},
    ),
}
MIXTRAL = Metadata("mixtral", ROTARY_SIZES | EXPERTS, HEAD, SILU)  # architecture llama with experts
