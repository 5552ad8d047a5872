"""model_type gpt_bigcode (SantaCoder, StarCoder): gpt2 with one key/value head (`multi_query`).

Source: Ben Allal et al. 2023, arXiv:2301.03988.
"""

from __future__ import annotations

from archcalc.config import Norm
from archcalc.families.gpt2 import ALIASES as GPT2
from archcalc.families.shared import decoder, feed_forward, layer_count, model, same, windowed
from archcalc.keys import Keys

ALIASES = GPT2
IGNORED = frozenset({
    "attention_softmax_in_fp32", "scale_attention_softmax_in_fp32", "inference_runner", "validate_runner_input",
    "pre_allocate_kv_cache", "max_sequence_length", "max_batch_size", "pad_key_length", "runner_max_sequence_length",
    "n_ctx", "attention_type",
})  # fmt: skip


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    norm = Norm("layernorm", k.float("layer_norm_epsilon", default=1e-5))
    mlp = feed_forward(k, act="gelu_pytorch_tanh", gated=False, bias=True, size=4 * k.int("hidden_size"))
    kv = 1 if k.bool("multi_query", default=True) else k.int("num_attention_heads")
    k.must_be("num_key_value_heads", kv, "multi_query says how many there are")
    mixer = windowed(k, (None,) * layer_count(k), bias=True, kv=kv)
    return model(k, decoder(k, mixer, same(mlp), norm), tie=True, positions=1024, position_embedding="learned")
