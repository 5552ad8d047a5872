"""model_type gemma: llama's block with heads of 256, GeGLU, scaled and tied embeddings.

Source: Gemma team 2024, arXiv:2403.08295.
"""

from __future__ import annotations

from archcalc.config import Norm
from archcalc.families.llama import rotary_decoder
from archcalc.families.shared import feed_forward, same
from archcalc.keys import Keys

ALIASES = {"hidden_act": ("hidden_activation",)}
RELEASE = {
    "gemma": {
        "vocab_size": 256000, "hidden_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16,
        "intermediate_size": 24576,
    }
}  # fmt: skip


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    return gemma_decoder(k, positions=8192, kv_heads=16)


def gemma_decoder(k: Keys, *, fields: dict | None = None, **parts) -> dict:
    """What all Gemmas share; `parts` as in `rotary_decoder`."""
    if "use_bidirectional_attention" not in k.used:  # gemma3 has read it
        k.must_be("use_bidirectional_attention", False)
    k = one_activation(k)
    mlp = same(feed_forward(k, act="gelu_pytorch_tanh", gated=True))
    head, fields = k.int("head_dim", default=256), {"scale_embedding": True} | (fields or {})
    return rotary_decoder(k, mlp, tie=True, norm=gemma_norm(k), head=head, fields=fields, **parts)


def gemma_norm(k: Keys) -> Norm:
    """RMSNorm whose checkpoints store the scale less one."""
    return Norm("rmsnorm", k.float("rms_norm_eps", default=1e-6), offset=1.0)


def one_activation(k: Keys) -> Keys:
    """The same keys with one activation: `hidden_activation` where given; a `gelu` always meant its tanh form."""
    k.used |= {"hidden_act", "hidden_activation"}
    act = k.raw.get("hidden_activation") or k.raw.get("hidden_act")
    rest = {n: v for n, v in k.raw.items() if n not in ("hidden_act", "hidden_activation")}
    return k.view(rest | {"hidden_act": "gelu_pytorch_tanh" if act == "gelu" else act}, k.aliases)
