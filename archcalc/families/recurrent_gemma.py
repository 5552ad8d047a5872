"""model_type recurrent_gemma: gated linear recurrences, every third layer local attention; GeGLU with biases.

`intermediate_size` is the width of both halves of the gated feed-forward together.
Source: Griffin, De et al. 2024, arXiv:2402.19427; Botev et al. 2024, arXiv:2404.07839.
"""

from __future__ import annotations

from archcalc.checks import divides
from archcalc.config import GatedLinearRecurrence, Head
from archcalc.errors import ConfigError
from archcalc.families.gemma import gemma_norm
from archcalc.families.rope import rotary
from archcalc.families.shared import attention, decoder, feed_forward, layer_count, model, same
from archcalc.keys import Keys

ALIASES = {
    "hidden_act": ("hidden_activation",),
    "sliding_window": ("attention_window_size",),
    "block_types": ("_block_types",),
    "final_logit_softcapping": ("logits_soft_cap",),
}
IGNORED = frozenset({"w_init_variance_scale", "final_w_init_variance_scale", "layers_block_type"})
KINDS = ("recurrent", "attention")


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    k.must_be("embeddings_scale_by_sqrt_dim", True)
    norm, depth, heads = gemma_norm(k), layer_count(k), k.int("num_attention_heads")
    period = k.strings("block_types", KINDS) or ("recurrent", "recurrent", "attention")
    width = k.int("lru_width", default=k.int("hidden_size"))
    divides(num_attention_heads=heads, lru_width=width)
    linear = GatedLinearRecurrence(heads, width // heads, k.int("conv1d_width", default=4))
    local = attention(k, window=k.int("sliding_window", default=2048), rotary=rotary(k, 1e4, 0.5), o_bias=True)
    types = [period[layer % len(period)] for layer in range(depth)]
    stack = decoder(k, lambda layer: local if types[layer] == "attention" else linear, same(_feed_forward(k)), norm)
    head = Head(logit_softcap=k.float("final_logit_softcapping", default=30.0))
    return model(k, stack, tie=True, positions=8192, scale_embedding=True, head=head)


def _feed_forward(k: Keys):
    whole = k.int("intermediate_size")
    if whole % 2:
        raise ConfigError(f"intermediate_size={whole}: both halves together; give an even number")
    k = k.view(k.raw | {"intermediate_size": whole // 2}, k.aliases)
    return feed_forward(k, act="gelu_pytorch_tanh", gated=True, bias=True)
