"""model_type bitnet: the llama block with a norm before each sublayer's last matrix, and gated squared ReLU.

Weights are counted as numbers, of three values each. Source: Ma et al. 2025, arXiv:2504.12285.
"""

from __future__ import annotations

from dataclasses import replace

from archcalc.config import Norm
from archcalc.families.llama import rotary_decoder
from archcalc.families.shared import feed_forward, same
from archcalc.keys import Keys

RELEASE = {
    "bitnet": {
        "vocab_size": 128256, "hidden_size": 2560, "num_hidden_layers": 30, "num_attention_heads": 20,
        "intermediate_size": 6912,
    }
}  # fmt: skip


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    k.must_be("mlp_bias", False, "the family's class has none")
    norm = Norm("rmsnorm", k.float("rms_norm_eps", default=1e-5))
    mlp = replace(feed_forward(k, act="relu2", gated=True), inner_norm=norm)
    return rotary_decoder(k, same(mlp), positions=2048, theta=5e5, norm=norm, kv_heads=5, output_norm=norm)
