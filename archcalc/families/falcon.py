"""model_type falcon: attention and feed-forward in parallel, few key/value heads, LayerNorm, tied head.

The 7B has one key/value head (`multi_query`) and one norm, the 40B, 180B and 11B `num_kv_heads` and one or two
(`new_decoder_architecture`), the RW models run one after the other with `alibi`.
Source: Almazrouei et al. 2023, arXiv:2311.16867.
"""

from __future__ import annotations

from archcalc.config import Norm
from archcalc.errors import ConfigError
from archcalc.families.llama import rotary_decoder
from archcalc.families.shared import feed_forward, same
from archcalc.keys import Keys

ALIASES = {
    "num_key_value_heads": ("num_kv_heads",),
    "intermediate_size": ("ffn_hidden_size",),
    "hidden_act": ("activation",),
    "hidden_size": ("n_embed",),
}
RELEASE = {"falcon": {"vocab_size": 65024, "hidden_size": 4544, "num_hidden_layers": 32, "num_attention_heads": 71}}


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    k.must_be("apply_residual_connection_post_layernorm", False)
    biased = k.bool("bias", default=False)
    mlp = feed_forward(k, act="gelu", gated=False, bias=biased, size=4 * k.int("hidden_size"))
    k.must_be("ff_factor", mlp.intermediate_size / k.int("hidden_size"), "ffn_hidden_size says another width")
    parts = {"norm": Norm("layernorm", k.float("layer_norm_epsilon", default=1e-5)), "parallel": _parallel(k)}
    if k.bool("alibi", default=False):
        for name in ("rope_theta", "rope_scaling", "rope_parameters"):
            k.used.add(name)  # the class writes them down, whether it turns anything or not
        scale = (k.int("hidden_size") / k.int("num_attention_heads")) ** -0.5
        parts |= {"alibi": True, "alibi_scale": scale, "rotary": None}
    return rotary_decoder(k, same(mlp), positions=2048, tie=True, bias=biased, kv=_kv_heads(k), **parts)


def _kv_heads(k: Keys) -> int:
    heads, given = k.int("num_attention_heads"), k.int("num_key_value_heads", default=None)
    one, new = k.bool("multi_query", default=True), k.bool("new_decoder_architecture", default=False)
    if not new and not one and given not in (None, heads):
        raise ConfigError(
            f"num_kv_heads={given} with multi_query=False and new_decoder_architecture=False: "
            f"such a model has one a query head; remove it or set it to {heads}"
        )
    return (given or heads) if new or not one else 1


def _parallel(k: Keys) -> str | None:
    parallel, new = k.bool("parallel_attn", default=True), k.bool("new_decoder_architecture", default=False)
    norms = k.int("num_ln_in_parallel_attn", default=2 if new else 1)
    if norms > 2 or (parallel and norms == 2 and not new):
        raise ConfigError(f"num_ln_in_parallel_attn={norms}: 1, or 2 with new_decoder_architecture; give one of them")
    if new and not parallel:
        raise ConfigError("parallel_attn=False with new_decoder_architecture=True: not understood; fix one of them")
    return ("own" if norms == 2 else "shared") if parallel else None
