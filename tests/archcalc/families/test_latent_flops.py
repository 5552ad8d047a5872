"""FLOPs and caches of latent, sparse and compressed attention.

FLOPs of toys are counted in eager forward passes. Products that eager code writes as an elementwise product and a sum
are no matrix product to the counter: those ops are named and set aside. Sums over chosen keys, where eager code
multiplies all of them and hides some, are compared with a sum over each query.
"""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from archcalc.config import Stack, expanded
from archcalc.cost import Pass, bound, cache_elements, costs, parameters, total
from archcalc.dims import Mask, kept, pairs, span
from archcalc.hf import config_from_keys

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

DATA = Path(__file__).parents[1] / "data"
LATENT = json.loads((DATA / "latent.json").read_text())
NAMES = ("deepseek-v3.2", "deepseek-v4-flash", "glm-5.2", "minimax-m3")
REAL = {name: json.loads((DATA / "configs" / f"{name}.json").read_text()) for name in NAMES}

IDS = {"pad_token_id": 1, "bos_token_id": 1, "eos_token_id": 1}
DENSE = {
    "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 128,
    "intermediate_size": 96, "kv_lora_rank": 24, "q_lora_rank": 40, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8,
    "v_head_dim": 12, "max_position_embeddings": 256,
} | IDS  # fmt: skip
EXPERTS = {
    "moe_intermediate_size": 32, "n_routed_experts": 8, "n_shared_experts": 2, "num_experts_per_tok": 2,
    "first_k_dense_replace": 1, "n_group": 2, "topk_group": 1,
}  # fmt: skip
INDEX = {"index_n_heads": 2, "index_head_dim": 16, "index_topk": 4}
V4 = {
    "model_type": "deepseek_v4", "hidden_size": 64, "num_hidden_layers": 5, "num_attention_heads": 4, "head_dim": 16,
    "q_lora_rank": 24, "o_groups": 2, "o_lora_rank": 8, "sliding_window": 8, "hc_mult": 2, "vocab_size": 100,
    "moe_intermediate_size": 32, "n_routed_experts": 8, "num_experts_per_tok": 2, "max_position_embeddings": 256,
    "compress_ratios": [0, 128, 4, 4, 0, 0], "num_hash_layers": 1, "qk_rope_head_dim": 8,
} | INDEX | IDS  # fmt: skip
M3 = {
    "model_type": "minimax_m3_vl_text", "architectures": ["MiniMaxM3VLForCausalLM"], "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 32, "vocab_size": 100,
    "dense_intermediate_size": 96, "shared_intermediate_size": 40, "num_local_experts": 8, "num_experts_per_tok": 2,
    "max_position_embeddings": 256, "index_n_heads": 2, "index_head_dim": 8, "index_block_size": 4,
    "index_topk_blocks": 2, "index_local_blocks": 1, "layer_types": ["full_attention"] + ["minimax_m3_sparse"] * 3,
    "mlp_layer_types": ["dense", "sparse", "sparse", "dense"],
} | IDS  # fmt: skip
V3 = DENSE | EXPERTS | {"model_type": "deepseek_v3"}
V32 = DENSE | EXPERTS | INDEX | {"model_type": "deepseek_v32"}


def flops(keys: dict, T: int, S: int, dense: bool = True, form=expanded, without: tuple = ()) -> int:
    """FLOPs of one sequence's pass over T tokens, without the ops of these names."""
    step = bound(form(config_from_keys(keys)))[1]
    run = Pass("", {"B": 1, "T": T, "S": S, "R": T}, step)
    lines = zip(step.lines, costs(run, dense), strict=True)
    return sum(line.count * cost.flops for line, cost in lines if not line.name.endswith(without or ("?",)))


def measured(keys: dict, T: int) -> tuple[int, int]:
    """FLOPs of an eager forward pass over T tokens, and of one more token after it."""
    from torch.utils.flop_counter import FlopCounterMode

    rest = {k: v for k, v in keys.items() if k not in ("model_type", "architectures")}
    config = transformers.AutoConfig.for_model(keys["model_type"], **rest)
    config._attn_implementation = config._experts_implementation = "eager"
    classes = keys.get("architectures")
    cls = getattr(transformers, classes[0]) if classes else None
    torch.manual_seed(0)
    model = cls._from_config(config) if cls else transformers.AutoModelForCausalLM.from_config(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    tokens = torch.randint(0, 90, (1, T))
    with torch.no_grad():
        with FlopCounterMode(display=False) as first:
            cache = model.eval()(tokens, use_cache=True).past_key_values
        with FlopCounterMode(display=False) as second:
            model(tokens[:, :1], cache=cache, use_cache=True)
    return first.get_total_flops(), second.get_total_flops()


@pytest.mark.parametrize("name", LATENT["small"])
@pytest.mark.parametrize(("batch", "T"), [(1, 16), (2, 64)])
def test_small_flops(name, batch, T):
    row = LATENT["small"][name]
    config = config_from_keys(row["config"])
    assert parameters(config) == row["parameters"]
    step, shape = bound(expanded(config))[1], f"{batch}x{T}"
    assert total(Pass("", {"B": batch, "T": T, "S": T, "R": T}, step), True).flops == row["flops"][shape]
    decode = Pass("", {"B": batch, "T": 1, "S": T + 1, "R": 1}, step)
    assert total(decode, True).flops == row["flops"][f"decode1_after_{shape}"]
    assert cache_elements(step, batch, T).cache == row["cache"][shape]


@pytest.mark.parametrize("T", [16, 37])
@pytest.mark.parametrize("keys", [V3 | {"q_lora_rank": None}, V32, M3], ids=lambda keys: keys["model_type"])
def test_flops_where_eager_code_multiplies_every_pair(keys, T):
    assert (flops(keys, T, T), flops(keys, 1, T + 1)) == measured(keys, T)


@pytest.mark.parametrize("T", [16, 37])
@pytest.mark.parametrize("ratios", [[0, 0, 0, 0, 0], [0, 128, 4, 4, 0]])
def test_flops_of_compressed_attention(ratios, T):
    # Set aside: sums over chunks, index heads and residual streams, no matrix products in eager code. Its cache of a
    # window holds the window, so the token after the prefill is counted causal; index_topk is as large as all entries.
    keys = V4 | {"compress_ratios": ratios, "compress_rate_hca": 8, "index_topk": 64}
    aside = (".pool", ".weighted", "hyper.collapse", "hyper_head.collapse")
    found = flops(keys, T, T, without=aside), flops(keys, 1, T + 1, dense=False, without=aside)
    assert found == measured(keys, T)


def seen(position: int, mask: Mask) -> int:
    """Keys or entries that the query at a position sees, by looking at each of them."""
    if mask.kind == "blocks":  # all chosen blocks but its own are whole
        blocks = list(range(position // mask.stride + 1))[-mask.limit :]
        return sum(key // mask.stride in blocks for key in range(position + 1))
    entries = sum(last <= position for last in range(mask.stride - 1, position + 1, mask.stride))
    return entries if mask.limit is None else min(entries, mask.limit)


@pytest.mark.parametrize("stride", [1, 2, 3, 4, 7])
@pytest.mark.parametrize(("limit", "kind"), [(None, "window"), (2, "topk"), (5, "topk"), (1, "blocks"), (3, "blocks")])
def test_pairs_with_entries_and_blocks(stride, limit, kind):
    mask = Mask(True, limit, kind, stride)
    for S in range(1, 33):
        by_hand = [seen(position, mask) for position in range(S)]
        for T in range(1, S + 1):
            assert pairs({"T": T, "S": S}, mask) == sum(by_hand[S - T :])
        assert pairs({"T": S, "S": S}, mask.dense) == S * (S if kind == "blocks" else S // stride)


def test_entries_are_made_read_and_kept_once_their_chunk_is_whole():
    made = Mask(True, None, "made", 4)
    assert [pairs({"T": 1, "S": S}, made) for S in range(1, 9)] == [0, 0, 0, 1, 0, 0, 0, 1]
    assert pairs({"T": 6, "S": 9}, made) == 2
    assert [kept(S, Mask(True, None, stride=4)) for S in (3, 4, 9)] == [0, 1, 2]
    assert kept(9, Mask(True, 2, "blocks", 4)) == 9
    assert span({"T": 1, "S": 41}, Mask(True, 3, "topk", 4)) == 3
    assert span({"T": 9, "S": 41}, Mask(True, 3, "topk", 4)) == 10
    assert span({"T": 1, "S": 41}, Mask(True, 3, "blocks", 4)) == 12


@pytest.mark.parametrize(("T", "S"), [(1, 40), (7, 40), (40, 40)])
def test_flops_of_chosen_keys(T, S):
    # Eager code multiplies all keys and hides those that are not chosen: counted by a sum over the queries instead.
    heads, width, index = 4, (16 + 8) + 12, (2, 16)
    chosen = sum(min(position + 1, 4) for position in range(S - T, S))
    every = sum(position + 1 for position in range(S - T, S))
    rest = flops(V32, T, S, without=("scores.nope", "scores.rope", ".context", "indexer.scores", ".weighted"))
    products = 2 * chosen * heads * width + 2 * every * index[0] * (index[1] + 1)
    assert flops(V32, T, S, dense=False) == rest + 3 * products


@pytest.mark.parametrize(("T", "S"), [(1, 61), (7, 61), (61, 61)])
def test_flops_of_chosen_entries_and_blocks(T, S):
    sparse = V4 | {"compress_ratios": [4] * 5}
    rest = flops(sparse, T, S, without=(".scores", ".context", ".weighted"))
    pairs_of = {"window": 0, "chosen": 0, "every": 0, "blocks": 0}
    for position in range(S - T, S):
        pairs_of["window"] += min(position + 1, 8)
        pairs_of["chosen"] += seen(position, Mask(True, 4, "topk", 4))
        pairs_of["every"] += seen(position, Mask(True, None, stride=4))
        pairs_of["blocks"] += seen(position, Mask(True, 2, "blocks", 4))
    attended, index = pairs_of["window"] + pairs_of["chosen"], 2 * (16 + 1)
    assert flops(sparse, T, S, dense=False) == rest + 5 * 2 * (attended * 4 * 2 * 16 + pairs_of["every"] * index)
    whole = sum(range(S - T + 1, S + 1))
    rest = flops(M3, T, S, without=(".scores", ".context"))
    products = (whole + 3 * pairs_of["blocks"]) * 4 * 2 * 16 + 3 * whole * 2 * 8
    assert flops(M3, T, S, dense=False) == rest + 2 * products


def attention_flops(form: str, T: int, S: int, causal: int) -> int:
    """FLOPs of latent attention in closed form, without its projections of the input; `causal` pairs."""
    N, J, P, Q, U = 4, 24, 16, 8, 12
    if form == "absorbed":  # queries and outputs of T tokens go through the latents
        return 2 * T * N * J * (P + U) + 2 * causal * N * (J + Q + J)
    return 2 * S * N * J * (P + U) + 2 * causal * N * (P + Q + U)


@pytest.mark.parametrize(("T", "S"), [(1, 1), (1, 50), (9, 50), (50, 50)])
def test_absorbed_and_expanded_forms(T, S):
    absorbed = config_from_keys(V3)
    made = expanded(absorbed)
    assert parameters(absorbed) == parameters(made)
    held = [cache_elements(bound(form)[1], 2, S) for form in (absorbed, made)]
    assert held == [(2 * S * 3 * (24 + 8), 0, 0)] * 2
    causal = T * (S - T) + T * (T + 1) // 2
    difference = attention_flops("expanded", T, S, causal) - attention_flops("absorbed", T, S, causal)
    assert flops(V3, T, S, False) - flops(V3, T, S, False, form=lambda config: config) == 3 * difference


def test_flops_of_kimi_delta_attention():
    # Eager code computes chunks of 64 with padding and masks; here are the products that the rule itself has.
    D, T, heads, width, taps = 64, 11, 3, 16, 4
    rest = {name: size for name, size in (DENSE | EXPERTS).items() if name != "n_routed_experts"}
    sizes = {"linear_num_heads": heads, "linear_head_dim": width, "linear_conv_kernel_dim": taps, "num_experts": 8}
    keys = rest | sizes | {"model_type": "kimi_linear", "num_hidden_layers": 1, "layer_types": ["linear_attention"]}
    inner = heads * width
    projections = D * (3 * inner + 2 * width + heads) + 2 * width * inner + inner * D
    state = 3 * heads * width * width  # predicted, corrected, read
    config = config_from_keys(keys)
    step = bound(config)[1]
    lines = zip(step.lines, costs(Pass("", {"B": 1, "T": T, "S": T, "R": T}, step)), strict=True)
    found = sum(cost.flops for line, cost in lines if ".mixer." in line.name)
    assert found == 2 * T * (projections + 3 * inner * taps + state)
    assert cache_elements(step, 2, 100) == (0, 0, 2 * (heads * width * width + 3 * inner * taps))


# Caches


def a_token(keys: dict, context: int = 4096) -> list[int]:
    """Cache elements of each layer, by context."""
    config = config_from_keys(keys)
    singles = [replace(config, decoder=Stack((layer,), config.decoder.final_norm)) for layer in config.decoder.layers]
    return [cache_elements(bound(one)[1], 1, context).cache for one in singles]


def test_cache_of_latents_and_of_indexers():
    assert set(a_token(LATENT["architectures"]["deepseek-v3"]["config"], 1)) == {512 + 64}
    assert set(a_token(REAL["deepseek-v3.2"], 1)) == {512 + 64 + 128}
    shared = a_token(REAL["glm-5.2"], 1)
    assert shared[:7] == [704, 704, 704, 576, 576, 576, 704] and shared.count(704) == 21
    assert a_token(REAL["minimax-m3"], 1)[2:4] == [2 * 4 * 128, 2 * 4 * 128 + 128]


@pytest.mark.parametrize("context", [1, 100, 128, 4095, 4096])
def test_cache_of_a_window_and_of_entries(context):
    window = min(context, 128) * 512
    sparse, heavy = window + context // 4 * (512 + 128), window + context // 128 * 512
    assert a_token(REAL["deepseek-v4-flash"], context)[:4] == [window, window, sparse, heavy]
    config = config_from_keys(REAL["deepseek-v4-flash"])
    static = cache_elements(bound(config)[1], 1, context, static=True)
    assert static.cache == 43 * context * 512 + 21 * (context // 4 * 640) + 20 * (context // 128 * 512)
    # Values and weights of two series of this chunk of 4 and the one before, for entries and for the indexer's; or of
    # one chunk of 128.
    assert static.state == 21 * 2 * (2 * 4) * 2 * (512 + 128) + 20 * 2 * 128 * 512


def written(keys: dict, T: int, S: int) -> int:
    """Cache elements that a pass over one sequence writes; states, which every pass writes whole, set aside."""
    step = bound(config_from_keys(keys))[1]
    return total(Pass("", {"B": 1, "T": T, "S": S, "R": T}, step)).cache_written - cache_elements(step, 1, 1).state


def test_what_a_pass_writes():
    assert written(V3, 5, 9) == 5 * 3 * (24 + 8)
    assert written(V32, 5, 9) == 5 * 3 * (24 + 8 + 16)
    assert written(M3, 5, 9) == 5 * (4 * 2 * 2 * 16 + 3 * 8)
    sparse = V4 | {"compress_ratios": [4] * 5}
    assert [written(sparse, 1, S) for S in (7, 8, 9)] == [5 * 16, 5 * (16 + 16 + 16), 5 * 16]
    assert written(sparse, 9, 9) == 5 * (9 * 16 + 2 * (16 + 16))
