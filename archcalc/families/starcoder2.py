"""model_type starcoder2: LayerNorm, grouped queries, a plain feed-forward, biases (`use_bias`), one window for all.

Source: Lozhkov et al. 2024, arXiv:2402.19173.
"""

from __future__ import annotations

from archcalc.config import Norm
from archcalc.families.llama import rotary_decoder
from archcalc.families.shared import feed_forward, same
from archcalc.keys import Keys

# The class reads hidden_act and norm_epsilon alone; the releases repeat them under other names.
IGNORED = frozenset({
    "activation_function", "layer_norm_epsilon", "rms_norm_eps", "attention_softmax_in_fp32",
    "scale_attention_softmax_in_fp32",
})  # fmt: skip
RELEASE = {
    "starcoder2": {
        "vocab_size": 49152, "hidden_size": 3072, "num_hidden_layers": 30, "num_attention_heads": 24,
        "intermediate_size": 12288,
    }
}  # fmt: skip


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    k.must_be("mlp_type", "default")
    k.must_be("norm_type", "layer_norm")
    norm, biased = Norm("layernorm", k.float("norm_epsilon", default=1e-5)), k.bool("use_bias", default=True)
    mlp = same(feed_forward(k, act="gelu_pytorch_tanh", gated=False, bias=biased))
    return rotary_decoder(k, mlp, positions=4096, tie=True, norm=norm, bias=biased, kv_heads=2)
