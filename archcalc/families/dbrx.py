"""model_type dbrx: the mixtral shape under names of its own, LayerNorm without a shift.

Source: Databricks 2024, the published config and classes of DBRX; Hugging Face defaults.
"""

from __future__ import annotations

from archcalc import keys
from archcalc.config import Norm
from archcalc.families.experts import ROUTING, routed
from archcalc.families.llama import rotary_decoder
from archcalc.families.shared import same
from archcalc.keys import Keys

ALIASES = {
    "hidden_size": ("d_model",),
    "num_attention_heads": ("n_heads",),
    "num_hidden_layers": ("n_layers",),
    "max_position_embeddings": ("max_seq_len",),
}
IGNORED = ROUTING | {"emb_pdrop"}
RELEASE = {"dbrx": {"vocab_size": 32000, "hidden_size": 2048, "num_attention_heads": 16, "num_hidden_layers": 24}}
NESTED = {
    "attn_config": {"num_key_value_heads": ("kv_n_heads", 1), "rope_theta": ("rope_theta", None)},
    "ffn_config": {
        "intermediate_size": ("ffn_hidden_size", 3584), "num_local_experts": ("moe_num_experts", 4),
        "num_experts_per_tok": ("moe_top_k", 1),
    },
}  # fmt: skip
HARMLESS = {
    "clip_qkv", "attn_pdrop", "moe_jitter_eps", "moe_loss_weight", "moe_normalize_expert_weights", "model_type",
    "uniform_expert_assignment", "is_encoder_decoder", "tie_word_embeddings", "is_decoder", "add_cross_attention",
    "tie_encoder_decoder", "pruned_heads",
}  # fmt: skip


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys: those of the two inner objects under canonical names."""
    k.must_be("tie_word_embeddings", False)
    found = {"hidden_act": "silu"}
    for outer, names in NESTED.items():
        inner = k.nested(outer) or Keys({}, owner=outer)
        for canonical, (name, default) in names.items():
            found[canonical] = (inner.float if name == "rope_theta" else inner.int)(name, default=default)
        if act := inner.nested("ffn_act_fn"):
            found["hidden_act"] = act.str("name", default="silu")
            act.finish()
        inner.must_be("hidden_size", k.int("hidden_size"), "experts are as wide as the model")
        inner.used |= keys.HARMLESS | HARMLESS
        inner.used |= {name for name, value in inner.raw.items() if name.startswith("_") or value is None}
        inner.finish()
    view = k.view(found | k.raw, k.aliases)
    norm = Norm("layernorm", 1e-5, bias=False)
    normed = (k.raw.get("ffn_config") or {}).get("moe_normalize_expert_weights", 1.0) is not None
    experts = routed(view, "intermediate_size", norm_topk_prob=normed)
    return rotary_decoder(view, same(experts), positions=2048, norm=norm)
