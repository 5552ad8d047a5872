"""model_type transformer: a block of your own, every part under its canonical key.

No released model has this type. It is for configurations that no family has: what is not given is a plain pre-norm
decoder with rotary positions, and a key that is not understood is refused, as everywhere.

    norm               rmsnorm | layernorm          norm_eps, norm_placement    pre | post | inner | sandwich | none
    parallel           shared | own                 embedding_norm              true | false
    position           rotary | learned | sinusoidal | alibi | none
    num_key_value_heads, head_dim, v_head_dim       q_bias, k_bias, v_bias, o_bias, attention_bias
    qk_norm            head | heads | all           output_gate                 element | head
    attention_sinks, attn_logit_softcapping, final_logit_softcapping
    sliding_window, attention_chunk_size, layer_types (full_attention | sliding_attention | chunked_attention)
    kv_lora_rank, q_lora_rank, qk_nope_head_dim, qk_rope_head_dim, v_head_dim: latent attention
    index_n_heads, index_head_dim, index_topk: it attends to chosen keys only
    hidden_act, gated, mlp_bias, intermediate_size
    num_local_experts, num_experts_per_tok, moe_intermediate_size, shared_expert_intermediate_size,
    shared_expert_gate, router_bias, first_k_dense_replace: a mixture of experts
    deepnorm, value_residual, unet_residual, hc_mult: the residual stream
"""

from __future__ import annotations

from archcalc.config import Embedding, Head, Indexer, LatentAttention, MixtureOfExperts, Norm
from archcalc.errors import ConfigError
from archcalc.families.rope import rotary
from archcalc.families.shared import (
    CHUNKED,
    FULL,
    SLIDING,
    attention,
    decoder,
    feed_forward,
    layer_count,
    layer_types,
    model,
)
from archcalc.keys import Keys

POSITIONS = {name: name for name in ("rotary", "learned", "sinusoidal", "alibi", "none")}


def build(k: Keys) -> dict:
    """ModelConfig fields from canonical keys."""
    kind = k.choice("norm", {"rmsnorm": "rmsnorm", "layernorm": "layernorm"}, default="rmsnorm")
    norm = Norm(kind, k.float("norm_eps", default=1e-5))
    position = k.choice("position", POSITIONS, default="rotary")
    mixer, depth = _latent(k, norm) or _attention(k, norm, position), layer_count(k)
    types = layer_types(k, depth, None, (FULL, SLIDING, CHUNKED))
    window, chunk = k.int("sliding_window", default=None), k.int("attention_chunk_size", default=None)
    kinds = types or (SLIDING if window else CHUNKED if chunk else FULL,) * depth
    for kind, size, key in ((SLIDING, window, "sliding_window"), (CHUNKED, chunk, "attention_chunk_size")):
        if kind in kinds and size is None:
            raise ConfigError(f"layer_types={kind!r}: needs a size; give {key}, a count of tokens")
    made = {kind: mixer(window if kind == SLIDING else None, chunk if kind == CHUNKED else None) for kind in set(kinds)}
    parallel = k.choice("parallel", {"shared": "shared", "own": "own", "none": None}, default="none")
    stack = decoder(k, lambda layer: made[kinds[layer]], _feed_forwards(k), norm, parallel=parallel)
    embedding = Embedding(norm=norm if k.bool("embedding_norm", default=False) else None)
    head = Head(
        bias=k.bool("lm_head_bias", default=False), logit_softcap=k.float("final_logit_softcapping", default=None)
    )
    table = position if position in ("learned", "sinusoidal") else "none"
    return model(k, stack, tie=False, positions=2048, position_embedding=table, embedding=embedding, head=head)


def _attention(k: Keys, norm: Norm, position: str):
    over = k.choice("qk_norm", {"head": "head", "heads": "heads", "all": "all", "none": None}, default="none")
    gate = k.choice("output_gate", {"element": "element", "head": "head", "none": None}, default="none")
    every = k.bool("attention_bias", default=False)
    parts = {f"{letter}_bias": k.bool(f"{letter}_bias", default=every) for letter in "qkvo"}
    parts |= {"qk_norm": norm, "qk_norm_over": over} if over else {}
    parts |= {"rotary": rotary(k, 1e4) if position == "rotary" else None, "alibi": position == "alibi"}
    parts |= {"output_gate": gate, "sinks": k.bool("attention_sinks", default=False)}
    parts |= {
        "v_head_dim": k.int("v_head_dim", default=None),
        "logit_softcap": k.float("attn_logit_softcapping", default=None),
    }
    return lambda window, chunk: attention(k, window=window, attention_chunk_size=chunk, **parts)


def _latent(k: Keys, norm: Norm):
    rank = k.int("kv_lora_rank", default=None)
    if rank is None:
        return None
    widths = [k.int(name) for name in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")]
    sizes = ("index_n_heads", "index_head_dim", "index_topk")
    indexer = Indexer(*map(k.int, sizes)) if k.given("index_topk") else None
    heads, bias = k.int("num_attention_heads"), k.bool("attention_bias", default=False)
    queries = k.int("q_lora_rank", default=None)
    one = LatentAttention(heads, queries, rank, *widths, norm, bias, rotary(k, 1e4), indexer)
    return lambda window, chunk: one


def _feed_forwards(k: Keys):
    """The feed-forward of each layer: dense in the first ones, then experts where there are any."""
    act, gated = k.str("hidden_act", default="silu"), k.bool("gated", default=True)
    experts = k.int("num_local_experts", default=None)
    first = k.int("first_k_dense_replace", default=None) or 0
    dense = feed_forward(k, act=act, gated=gated) if experts is None or first else None
    if experts is None:
        return lambda layer: dense
    name = "moe_intermediate_size" if k.given("moe_intermediate_size") else "intermediate_size"
    k.int("intermediate_size", default=None)  # a config may carry it though no layer is dense
    one = feed_forward(k, act=act, gated=gated, name=name)
    width = k.int("shared_expert_intermediate_size", default=None)
    moe = MixtureOfExperts(
        one,
        experts,
        k.int("num_experts_per_tok"),
        shared=feed_forward(k, act=act, gated=gated, name="shared_expert_intermediate_size") if width else None,
        shared_gate=k.bool("shared_expert_gate", default=False),
        router_bias=k.bool("router_bias", default=False),
    )
    return lambda layer: dense if layer < first else moe
