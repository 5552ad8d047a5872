"""model_type stablelm: the llama block with LayerNorm; switches for biases, normed queries and keys, and parallel
sublayers. Source: Bellagente et al. 2024, arXiv:2402.17834.
"""

from __future__ import annotations

from archcalc.config import Norm
from archcalc.families.llama import rotary_decoder
from archcalc.families.shared import feed_forward, same
from archcalc.keys import Keys

RELEASE = {
    "stablelm": {
        "vocab_size": 50304, "hidden_size": 2560, "num_hidden_layers": 32, "num_attention_heads": 32,
        "intermediate_size": 6912,
    }
}  # fmt: skip


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    eps, biased = k.float("layer_norm_eps", default=1e-5), k.bool("use_qkv_bias", default=False)
    parallel = "shared" if k.bool("use_parallel_residual", default=False) else None
    parts = {"q_bias": biased, "k_bias": biased, "v_bias": biased}
    if k.bool("qk_layernorm", default=False):
        parts |= {"qk_norm": Norm("layernorm", eps, bias=False), "qk_norm_over": "heads"}
    mlp = same(feed_forward(k, act="silu", gated=True))
    parts |= {"kv_heads": 32, "norm": Norm("layernorm", eps), "parallel": parallel}
    return rotary_decoder(k, mlp, positions=4096, share=0.25, **parts)
