"""model_type openai-gpt, the first GPT: gpt2 with norms after the sublayers and none at the end.

Source: Radford et al. 2018, "Improving Language Understanding by Generative Pre-Training".
"""

from __future__ import annotations

from archcalc.config import Norm
from archcalc.families.gpt2 import ALIASES as GPT2
from archcalc.families.shared import decoder, feed_forward, layer_count, model, same, windowed
from archcalc.keys import Keys

ALIASES = GPT2 | {"hidden_act": ("afn",)}
IGNORED = frozenset({"n_ctx", "n_special", "predict_special_tokens"})
RELEASE = {
    "openai-gpt": {"vocab_size": 40478, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12},
}


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    norm, width = Norm("layernorm", k.float("layer_norm_epsilon", default=1e-5)), 4 * k.int("hidden_size")
    k.must_be("intermediate_size", width, "this family has 4 x hidden_size")
    mlp = feed_forward(k, act="gelu", gated=False, bias=True, size=width)
    mixer = windowed(k, (None,) * layer_count(k), bias=True)
    stack = decoder(k, mixer, same(mlp), norm, "post")
    return model(k, stack, tie=True, positions=512, position_embedding="learned")
