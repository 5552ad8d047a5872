"""model_type mistral4: deepseek_v3's block with a router that chooses by softmax and has no bias.

Source: the released Mistral Small 4 config.
"""

from __future__ import annotations

from archcalc.families import latent
from archcalc.families.experts import weighed
from archcalc.families.latent import feed_forwards, latent_decoder
from archcalc.keys import Keys

ALIASES = {"n_routed_experts": ("num_local_experts",)}
IGNORED = latent.IGNORED
STACK = {"vocab_size": 131072, "hidden_size": 4096, "num_hidden_layers": 36, "max_position_embeddings": 1048576}
HEADS = {"num_attention_heads": 32, "qk_nope_head_dim": 64, "qk_rope_head_dim": 64, "v_head_dim": 128}
RANKS = {"q_lora_rank": 1024, "kv_lora_rank": 256, "intermediate_size": 12288, "first_k_dense_replace": 0}
EXPERTS = {"n_routed_experts": 128, "n_shared_experts": 1, "moe_intermediate_size": 2048, "num_experts_per_tok": 4}
YARN = {
    "rope_type": "yarn", "factor": 128.0, "original_max_position_embeddings": 8192, "beta_fast": 32.0,
    "beta_slow": 1.0, "mscale_all_dim": 1.0, "mscale": 1.0, "llama_4_scaling_beta": 0.1,
}  # fmt: skip
RELEASE = {"mistral4": STACK | HEADS | RANKS | EXPERTS}


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    k.must_be("mlp_bias", False)
    mlp = feed_forwards(k, correction_bias=False, **weighed(k, scale=1.0, groups=(1, 1)))
    given = any(k.raw.get(name) is not None for name in ("rope_scaling", "rope_parameters"))
    return latent_decoder(k if given else k.view(k.raw | {"rope_parameters": YARN}, k.aliases), mlp, eps=1e-6)
