"""model_type gpt_neox (GPT-NeoX-20B, Pythia): attention and feed-forward in parallel behind a LayerNorm each, biases.

Source: Black et al. 2022, arXiv:2204.06745; Biderman et al. 2023, arXiv:2304.01373.
"""

from __future__ import annotations

from archcalc.config import Norm
from archcalc.families.llama import rotary_decoder
from archcalc.families.shared import feed_forward, same
from archcalc.keys import Keys

ALIASES = {"rope_theta": ("rotary_emb_base",), "partial_rotary_factor": ("rotary_pct",)}
RELEASE = {
    "gpt_neox": {
        "vocab_size": 50432, "hidden_size": 6144, "num_hidden_layers": 44, "num_attention_heads": 64,
        "intermediate_size": 24576,
    }
}  # fmt: skip


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    norm = Norm("layernorm", k.float("layer_norm_eps", default=1e-5))
    mlp = same(feed_forward(k, act="gelu", gated=False, bias=True))
    parallel = "own" if k.bool("use_parallel_residual", default=True) else None
    return rotary_decoder(k, mlp, positions=2048, share=0.25, norm=norm, parallel=parallel, bias=True)
