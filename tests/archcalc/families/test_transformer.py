"""The canonical type: each part by itself, its parameters and FLOPs worked out by hand."""

import pytest

from archcalc.cost import Pass, active_parameters, bound, cache_elements, parameters, total
from archcalc.errors import ConfigError
from archcalc.hf import config_from_keys

D, L, N, H, F, V, M = 64, 4, 4, 16, 128, 100, 2048
BASE = {
    "model_type": "transformer", "hidden_size": D, "num_hidden_layers": L, "num_attention_heads": N,
    "intermediate_size": F, "vocab_size": V,
}  # fmt: skip
PLAIN = 2 * V * D + D + L * (4 * D * D + 3 * D * F + 2 * D)
LATENT = {"q_lora_rank": 24, "kv_lora_rank": 20, "qk_nope_head_dim": 12, "qk_rope_head_dim": 4, "v_head_dim": 10}
INDEX = {"index_n_heads": 2, "index_head_dim": 6, "index_topk": 3}
MOE = {"num_local_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 32}


def made(**keys):
    return config_from_keys(BASE | keys)


def flops(config, T=5, S=5, B=2, dense=False) -> int:
    return total(Pass("", {"B": B, "T": T, "S": S, "R": T}, bound(config)[1]), dense).flops


def test_the_plain_model():
    assert parameters(made()) == PLAIN


@pytest.mark.parametrize(
    ("keys", "more"),
    [
        ({"norm": "layernorm"}, D * (2 * L + 1)),
        ({"norm_placement": "sandwich"}, 2 * D * L),
        ({"norm_placement": "inner"}, 0),
        ({"norm_placement": "post"}, -D),  # no final norm
        ({"norm_placement": "none"}, -2 * D * L),
        ({"parallel": "shared"}, -D * L),
        ({"parallel": "own"}, 0),
        ({"num_key_value_heads": 2}, -2 * L * D * 2 * H),
        ({"head_dim": 32}, L * 4 * D * N * 16),
        ({"v_head_dim": 8}, -L * 2 * D * N * 8),
        ({"q_bias": True}, L * N * H),
        ({"v_bias": True, "num_key_value_heads": 2}, L * (2 * H - 2 * D * 2 * H)),
        ({"o_bias": True}, L * D),
        ({"attention_bias": True}, L * (3 * N * H + D)),
        ({"mlp_bias": True}, L * (2 * F + D)),
        ({"gated": False}, -L * D * F),
        ({"qk_norm": "head"}, L * 2 * H),
        ({"qk_norm": "heads"}, L * 2 * N * H),
        ({"qk_norm": "all", "num_key_value_heads": 2}, L * (N * H + 2 * H - 2 * D * 2 * H)),
        ({"output_gate": "element"}, L * D * N * H),
        ({"output_gate": "head"}, L * D * N),
        ({"attention_sinks": True}, L * N),
        ({"attn_logit_softcapping": 30.0, "final_logit_softcapping": 50.0}, 0),
        ({"position": "learned"}, M * D),
        ({"position": "sinusoidal"}, 0),
        ({"position": "alibi"}, 0),
        ({"embedding_norm": True}, D),
        ({"lm_head_bias": True}, V),
        ({"tie_word_embeddings": True}, -V * D),
        ({"sliding_window": 3}, 0),
        ({"attention_chunk_size": 3}, 0),
        ({"deepnorm": True, "norm_placement": "post"}, -D),
        ({"value_residual": True}, 2 * (L - 1)),
        ({"unet_residual": True}, L // 2),
        # mixing weights of two sublayers a layer, and a last collapse: 4 streams make (2 + 4)·4 weights from 4·D
        ({"hc_mult": 4}, 2 * L * (24 * 4 * D + 24 + 3) + 4 * 4 * D + 4 + 1),
        (MOE, L * (D * 6 + 6 * 3 * D * 32 - 3 * D * F)),
        (MOE | {"first_k_dense_replace": 1}, (L - 1) * (D * 6 + 6 * 3 * D * 32 - 3 * D * F)),
        (
            MOE | {"shared_expert_intermediate_size": 48, "shared_expert_gate": True, "router_bias": True},
            L * (D * 6 + 6 + 6 * 3 * D * 32 + 3 * D * 48 + D - 3 * D * F),
        ),
        (MOE | {"mlp_bias": True}, L * (D * 6 + 6 * (3 * D * 32 + 2 * 32 + D) - 3 * D * F)),
        (
            LATENT,
            L * (D * 24 + 24 + 24 * N * 16 + D * 24 + 20 + 20 * N * 22 + N * 10 * D - 4 * D * D),
        ),
        (
            LATENT | INDEX,
            L * (D * 24 + 24 + 24 * N * 16 + D * 24 + 20 + 20 * N * 22 + N * 10 * D - 4 * D * D)
            + L * (24 * 2 * 6 + D * 6 + 12 + D * 2),
        ),
    ],
)
def test_each_part_adds_what_it_owns(keys, more):
    assert parameters(made(**keys)) == PLAIN + more


def test_experts_by_token():
    config = made(**MOE, shared_expert_intermediate_size=48)
    dense = PLAIN - L * 3 * D * F
    assert active_parameters(config) == dense + L * (D * 6 + 2 * 3 * D * 32 + 3 * D * 48)
    token = 2 * L * (D * 6 + 2 * 3 * D * 32 + 3 * D * 48 - 3 * D * F)
    assert flops(config) - flops(made()) == 2 * 5 * token


@pytest.mark.parametrize(
    ("keys", "seen"),
    [
        ({}, 1 + 2 + 3 + 4 + 5),
        ({"sliding_window": 3}, 1 + 2 + 3 + 3 + 3),
        ({"attention_chunk_size": 3}, 1 + 2 + 3 + 1 + 2),
        ({"sliding_window": 2, "layer_types": ["full_attention", "sliding_attention"] * 2}, (15 + 1 + 2 * 4) / 2),
    ],
)
def test_pairs_that_a_mask_lets_through(keys, seen):
    hidden = made(**keys)
    matrices = 2 * 2 * 5 * (L * (4 * D * D + 3 * D * F) + V * D)
    assert flops(hidden) == matrices + 2 * L * 4 * N * H * seen
    assert flops(hidden, dense=True) == matrices + 2 * L * 4 * N * H * 25


def test_products_of_residual_streams():
    weights, collapse, mix = 24 * 4 * D, 4 * D, 4 * 4 * D
    more = 2 * L * (weights + collapse + mix) + 4 * 4 * D + collapse
    assert flops(made(hc_mult=4)) - flops(made()) == 2 * 2 * 5 * more


def test_cache_of_each_attention():
    def cache(**keys):
        return cache_elements(bound(made(**keys))[1], 3, 100).cache

    assert cache() == 3 * 100 * L * 2 * N * H
    assert cache(sliding_window=8) == cache(attention_chunk_size=8) == 3 * 8 * L * 2 * N * H
    assert cache(v_head_dim=8) == 3 * 100 * L * N * (H + 8)
    assert cache(**LATENT) == 3 * 100 * L * (20 + 4)
    assert cache(**LATENT, **INDEX) == 3 * 100 * L * (20 + 4 + 6)


def test_latent_attention_attends_to_the_chosen_keys_and_scores_all():
    plain, chosen = flops(made(**LATENT)), flops(made(**LATENT, **INDEX))
    head = 2 * N * (20 + 4 + 20)  # absorbed: latent and rotary scores, context
    index = 2 * 5 * 2 * (24 * 2 * 6 + D * 6 + D * 2) + 2 * 15 * 2 * (2 * 6 + 2)
    assert chosen - plain == L * (index + 2 * (12 - 15) * head)


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"parallel": "shared", "norm_placement": "post"}, "parallel='shared': needs norm_placement='pre'"),
        ({"sliding_window": 4, "layer_types": ["chunked_attention"] * 4}, "layer_types"),
        ({"position": "spiral"}, "position='spiral': not understood"),
        ({"qk_norm": "row"}, "qk_norm='row': not understood"),
        ({"kv_lora_rank": 8}, "qk_nope_head_dim: missing"),
        ({"num_local_experts": 4}, "num_experts_per_tok: missing"),
        ({"hc_mult": 0}, "hc_mult=0: must be a whole number from 1"),
    ],
)
def test_refused(keys, says):
    with pytest.raises(ConfigError) as caught:
        made(**keys)
    assert says in str(caught.value)
