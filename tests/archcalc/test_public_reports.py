"""Questions that people asked in public about memory, parameters and FLOPs, with the right answers.

Each case is an issue or a server's log: a model, a shape and a number. Where the number that was reported was wrong,
the test has the right one and, where it says how it came about, the wrong one too.
"""

import json
from fractions import Fraction

import pytest

from archcalc import Request, preset, report
from archcalc.cli import main
from archcalc.config import Attention, Block, FeedForward, ModelConfig, Norm, Stack
from archcalc.cost import active_parameters, bound, cache_elements, costs, parameters, passes, total
from archcalc.counts import parameter_counts
from archcalc.dims import Mask, pairs
from archcalc.hf import config_from_keys
from archcalc.memory import Paged, Reserved, parse_bytes, reserved
from archcalc.precision import precision
from archcalc.training import Step, flops

GiB = 2**30
BF16, FP8 = precision("bf16"), precision("fp8")


def llama(hidden: int, layers: int, heads: int, kv: int, ffn: int, vocab: int, **more):
    keys = {
        "model_type": "llama",
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "intermediate_size": ffn,
        "vocab_size": vocab,
    }
    return config_from_keys(keys | more)


def of_type(model_type: str, like: ModelConfig, **more):
    """The same sizes under another model_type."""
    return config_from_keys(like.keys | {"model_type": model_type} | more)


LLAMA2_7B = llama(4096, 32, 32, 32, 11008, 32000)
LLAMA2_13B = llama(5120, 40, 40, 40, 13824, 32000)
LLAMA3_8B = llama(4096, 32, 32, 8, 14336, 128256)
LLAMA3_405B = llama(16384, 126, 128, 8, 53248, 128256)
LLAMA32_1B = llama(2048, 16, 32, 8, 8192, 128256, head_dim=64, tie_word_embeddings=True)
STORIES = llama(288, 6, 6, 6, 768, 32000, tie_word_embeddings=True)
MIXTRAL = preset("mixtral-8x7b")


def per_token(config, stored=BF16, tp: int = 1) -> int:
    return Reserved(config, Paged(tp=tp), stored).per_token()


def qwen3(hidden, layers, heads, kv, ffn, tie=False, **more):
    like = llama(hidden, layers, heads, kv, ffn, 151936, head_dim=128, tie_word_embeddings=tie)
    return of_type("qwen3", like, **more)


def qwen3_30b_a3b():
    keys = {
        "model_type": "qwen3_moe", "hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads": 32,
        "num_key_value_heads": 4, "head_dim": 128, "intermediate_size": 6144, "moe_intermediate_size": 768,
        "num_experts": 128, "num_experts_per_tok": 8, "vocab_size": 151936, "norm_topk_prob": True,
        "decoder_sparse_step": 1, "mlp_only_layers": [], "max_position_embeddings": 40960,
    }  # fmt: skip
    return config_from_keys(keys)


def test_c01_blocks_of_a_server_log():
    for blocks, tokens, room, length, concurrency in (
        (1952, 31_232, "3.8125GiB", 20_000, "1.56x"),
        (1478, 23_648, "2.88671875GiB", 29_000, "0.82x"),
    ):
        found = reserved(LLAMA3_8B, Paged(room=parse_bytes(room)), 1, length, 0, BF16)
        assert found["rank_bytes_per_token"] == 131_072
        assert (found["fits"]["blocks"], found["fits"]["tokens"]) == (blocks, tokens)
        assert blocks * found["rank_bytes_per_block"] == parse_bytes(room)
        assert f"{found['fits']['concurrency']:.2f}x" == concurrency
        assert found["fits"]["longest_context"] == tokens
    assert f"{1478 * 16 * 131_072 / GiB:.3f}" == "2.887"


def test_c02_one_request_of_the_default_length():
    cache = Reserved(LLAMA3_8B, Paged(block_size=1), BF16)
    assert cache.request(131_072) == 16 * GiB
    assert cache.longest(parse_bytes("0.71GiB")) == 5_816
    assert Reserved(LLAMA3_8B, Paged(), BF16).longest(parse_bytes("0.71GiB")) == 5_808  # whole blocks of 16


def llama4_scout():
    keys = {
        "model_type": "llama4_text", "hidden_size": 5120, "num_hidden_layers": 48, "num_attention_heads": 40,
        "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 8192, "intermediate_size_mlp": 16384,
        "num_local_experts": 16, "num_experts_per_tok": 1, "interleave_moe_layer_step": 1, "vocab_size": 202048,
        "attention_chunk_size": 8192, "max_position_embeddings": 10485760, "use_qk_norm": True,
    }  # fmt: skip
    return config_from_keys(keys)


def test_c03_a_rank_of_eight():
    engine = Paged(tp=8, windowed_as_full=True)
    cache = Reserved(llama4_scout(), engine, BF16)
    assert cache.per_token() == 24_576 == 196_608 // 8
    assert cache.request(2**20) == 24 * GiB
    assert cache.longest(24 * GiB) == 2**20
    assert Reserved(llama4_scout(), Paged(tp=8), BF16).request(2**20) < 8 * GiB  # 36 of 48 layers hold a chunk


def gemma4_31b():
    types = ["full_attention" if (layer + 1) % 6 == 0 else "sliding_attention" for layer in range(60)]
    keys = {
        "model_type": "gemma4_text", "hidden_size": 5376, "num_hidden_layers": 60, "num_attention_heads": 32,
        "num_key_value_heads": 16, "head_dim": 256, "num_global_key_value_heads": 4, "global_head_dim": 512,
        "sliding_window": 1024, "layer_types": types, "intermediate_size": 21504, "vocab_size": 262144,
        "attention_k_eq_v": True, "hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0,
        "enable_moe_block": False, "max_position_embeddings": 262144, "use_double_wide_mlp": False,
    }  # fmt: skip
    return config_from_keys(keys)


def test_c05_windowed_layers_charged_in_full():
    config, length = gemma4_31b(), 262_144
    as_full = Reserved(config, Paged(windowed_as_full=True), BF16)
    assert as_full.per_token() == 901_120
    assert as_full.request(length) == 220 * GiB
    kv = report(config, Request(prompt=length, kv_precision="bf16"))["kv_cache"]
    assert kv["slope_bytes_per_token"] == 81_920
    assert kv["constant_bytes"] == 819_200 * 1024
    assert f"{kv['bytes'] / GiB:.2f}" == "20.78"


def test_c07_concurrency_of_a_model_of_windows_only():
    keys = {
        "model_type": "starcoder2", "hidden_size": 3072, "num_hidden_layers": 30, "num_attention_heads": 24,
        "num_key_value_heads": 2, "intermediate_size": 12288, "vocab_size": 49152, "sliding_window": 4096,
        "max_position_embeddings": 16384, "use_bias": True, "tie_word_embeddings": True,
    }  # fmt: skip
    config, pool = config_from_keys(keys), 2_198_512
    found = reserved(config, Paged(prefill_chunk=8192, room_blocks=pool // 16), 1, 16_384, 0, BF16)
    assert found["blocks_per_request"] == 769 and 769 * 16 == 12_304
    assert found["fits"]["tokens"] == pool
    assert f"{found['fits']['concurrency']:.2f}" == "178.68"
    assert found["fits"]["longest_context"] == 2**40  # windows end: any length
    naive = reserved(config, Paged(windowed_as_full=True, room_blocks=pool // 16), 1, 16_384, 0, BF16)
    assert f"{naive['fits']['concurrency']:.2f}" == "134.19"


def test_c09_keys_and_values_of_eight_bits():
    config = qwen3_30b_a3b()
    assert per_token(config, FP8) == 49_152
    for room, tokens in (("10.55GiB", 230_528), ("10.12GiB", 221_000)):
        assert abs(parse_bytes(room) / tokens / 49_152 - 1) < 0.001


def test_c10_latents():
    keys = {
        "model_type": "mistral4", "hidden_size": 4096, "num_hidden_layers": 36, "num_attention_heads": 32,
        "num_key_value_heads": 32, "q_lora_rank": 1024, "kv_lora_rank": 256, "qk_nope_head_dim": 64,
        "qk_rope_head_dim": 64, "v_head_dim": 128, "intermediate_size": 12288, "moe_intermediate_size": 2048,
        "n_routed_experts": 128, "num_experts_per_tok": 4, "n_shared_experts": 1, "first_k_dense_replace": 0,
        "vocab_size": 131072, "max_position_embeddings": 1048576, "n_group": 1, "topk_group": 1,
    }  # fmt: skip
    cache = Reserved(config_from_keys(keys), Paged(), BF16)
    assert cache.per_token() == 23_040
    assert cache.request(1_048_576) == 22.5 * GiB
    assert cache.longest(parse_bytes("17.39GiB")) // 100 == 8_104
    assert per_token(config_from_keys(keys), tp=8) == 23_040  # every rank has all latents


def test_c12_a_latent_is_cached_once():
    keys = {
        "model_type": "deepseek_v3", "hidden_size": 7168, "num_hidden_layers": 61, "num_attention_heads": 128,
        "num_key_value_heads": 128, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64, "v_head_dim": 128, "intermediate_size": 18432, "moe_intermediate_size": 2048,
        "n_routed_experts": 256, "num_experts_per_tok": 8, "n_shared_experts": 1, "first_k_dense_replace": 3,
        "n_group": 8, "topk_group": 4, "vocab_size": 129280, "max_position_embeddings": 163840,
    }  # fmt: skip
    config = config_from_keys(keys)
    assert per_token(config) == 70_272 == 61 * (512 + 64) * 2
    assert 2 * 61 * 512 == 62_464  # elements, what the wrong formula gives
    one = total(passes(config, 1, 1024, 1024)[0])
    assert one.flops > 0


def test_c13_and_c37_head_dim_is_a_key():
    assert per_token(qwen3(2560, 36, 32, 8, 9728, tie=True)) == 147_456 == 2 * 73_728
    config = qwen3(1024, 28, 16, 8, 3072, tie=True)
    assert cache_elements(bound(config)[1], 1, 1).cache == 57_344
    assert config.decoder.layers[0].self_attn.head_dim == 128


def test_c15_and_c59_grouped_queries():
    assert per_token(LLAMA2_7B) == 524_288
    assert per_token(LLAMA3_8B) == 131_072
    decode = passes(LLAMA3_8B, 1, 1000, 1000)[1]
    assert 2 * total(decode).cache_read == 131_072 * 1000  # and not 524,288 a token


def test_c18_and_c19_eight_groups():
    assert per_token(LLAMA3_405B) == 516_096
    assert f"{516_096 * 1024 / GiB:.3f}" == "0.492"
    assert f"{516_096 * 128_000 / GiB:.1f}" == "61.5"
    assert f"{131_072 * 128_000 / GiB:.2f}" == "15.62"
    assert parameters(LLAMA3_405B) == 405_853_388_800
    doubled = config_from_keys(LLAMA3_405B.keys, {"num_key_value_heads": 16})
    assert parameters(doubled) == 410_081_247_232
    assert f"{per_token(doubled) * 1024 / GiB:.3f}" == "0.984"


def test_c20_wrong_metadata_is_another_model():
    assert parameters(LLAMA2_7B) == 6_738_415_616
    assert parameters(llama(4096, 32, 32, 8, 14336, 32000)) == 7_241_732_096


def test_c22_four_ranks():
    config = qwen3(5120, 64, 64, 8, 25600)
    assert per_token(config) == 262_144
    assert per_token(config, tp=4) == 65_536
    room = 814 * 256 * 262_144
    blocks = [
        reserved(config, Paged(tp=tp, block_size=256, room=room), 1, 1024, 0, BF16)["fits"]["blocks"] for tp in (1, 4)
    ]
    assert blocks == [814, 4 * 814]


def test_c25_a_constant_and_a_slope():
    """Where layers end at a window, bytes a token is no number: cost(T) = constant + slope·T."""
    layers = tuple("full_attention" if n % 2 else "sliding_attention" for n in range(4))
    config = of_type(
        "qwen2", llama(256, 4, 4, 2, 512, 1000), layer_types=list(layers), sliding_window=64, use_sliding_window=True
    )
    for context in (64, 1000, 5000):
        kv = report(config, Request(prompt=8, context=context))["kv_cache"]
        assert kv["bytes"] == kv["constant_bytes"] + kv["slope_bytes_per_token"] * context


def test_c26_to_c28_a_tied_head_counts_once():
    assert parameters(STORIES) == 15_191_712 == 24_407_712 - 32_000 * 288
    assert parameters(LLAMA32_1B) == 1_235_814_400 == 1_498_482_688 - 128_256 * 2_048
    assert parameters(preset("gpt2")) == 124_439_808
    assert parameters(preset("gpt2", {"tie_word_embeddings": False})) == 163_037_184 == 124_439_808 + 38_597_376


def test_c30_matrices_only():
    assert parameter_counts(preset("gpt2"))["matrices of blocks"]["total"] == 84_934_656 == 12 * 12 * 768**2


def test_c31_all_and_active_experts():
    assert (parameters(MIXTRAL), active_parameters(MIXTRAL)) == (46_702_792_704, 12_879_925_248)


def test_c34_and_c35_a_packed_count_is_no_count():
    """What a 4-bit checkpoint's elements add up to; the parameters stay."""
    assert parameters(LLAMA2_7B) == 6_738_415_616
    linear = parameter_counts(LLAMA2_7B)["matrices of blocks"]["total"]
    assert linear == 6_476_005_376
    assert 3_540_389_888 == linear // 2 + 262_144_000 + 266_240 + 39_976_960
    assert parameters(LLAMA2_13B) == 13_015_864_320
    linear = parameter_counts(LLAMA2_13B)["matrices of blocks"]["total"]
    assert linear == 12_687_769_600
    assert linear // 2 + parameters(LLAMA2_13B) - linear == 6_671_979_520


def test_c41_and_c43_bytes_of_a_file():
    keys = {
        "model_type": "bloom", "hidden_size": 1024, "n_layer": 24, "n_head": 16, "vocab_size": 250880,
        "layer_norm_epsilon": 1e-5,
    }  # fmt: skip
    config = config_from_keys(keys)
    assert parameters(config) == 559_214_592
    stored = report(config, Request(prompt=16))["weight_bytes"]["fp32"]
    assert f"{stored / GiB:.3f}" == "2.083"
    assert f"{(stored + 250_880 * 1024 * 4) / GiB:.2f}" == "3.04"  # the head twice
    assert stored > 2**31 - 1 >= 4 * 536_870_911


def test_c46_attention_of_a_call():
    """Two products of 64 x 64 pairs for 12 heads of 64."""
    block = Block(Attention(12, 12, 64, causal=False), None, Norm("layernorm", 1e-5))
    config = ModelConfig(10, 768, 64, None, encoder=Stack((block,), None))
    run = passes(config, 1, 64, 64)[0]
    by_name = {line.op.name: cost.flops for line, cost in zip(run.bound.lines, costs(run), strict=True)}
    assert by_name["self_attn.scores"] + by_name["self_attn.context"] == 12_582_912


def test_c47_an_encoder_layer():
    block = Block(Attention(4, 4, 16, causal=False), FeedForward(256, "relu"), Norm("layernorm", 1e-5), "post")
    config = ModelConfig(10, 64, 16, None, encoder=Stack((block,), None))
    run = passes(config, 1, 16, 16)[0]
    flops_of = {line.op.name: cost.flops for line, cost in zip(run.bound.lines, costs(run), strict=True)}
    attention = flops_of["self_attn.scores"] + flops_of["self_attn.context"]
    of_block = sum(flops_of.values()) - flops_of["lm_head"]
    assert (of_block - attention, attention, of_block) == (1_572_864, 65_536, 1_638_400)


def test_c48_a_causal_rectangle():
    """4 queries at the end of 10 keys, widths 8 and 16: the reported tool halves the square, we count its diagonal."""
    seen = pairs({"T": 4, "S": 10}, Mask(True, None))
    assert seen == 4 * 6 + 4 * 5 // 2
    assert 2 * (8 + 16) * seen == 1_632
    assert 2 * (8 + 16) * Fraction(2 * seen - 4, 2) == 1_536  # half of the square instead: minus half its diagonal


def test_c50_a_multiply_add_is_two_flops(capsys):
    whole, half = (report(LLAMA2_7B, Request(macs=macs)) for macs in (False, True))
    for one, other in zip(whole["passes"], half["passes"], strict=True):
        assert one["flops"] == 2 * other["macs"]
        assert [part["flops"] for part in one["parts"]] == [2 * part["macs"] for part in other["parts"]]
    assert main(["report", "--preset", "llama3-8b", "--macs"]) == 0
    text = capsys.readouterr().out
    assert "prefill MACs" in text
    assert "FLOPs" not in text.replace("half the FLOPs", "")
    assert main(["report", "--preset", "llama3-8b", "--macs", "--format", "json"]) == 0
    assert "flops" not in json.dumps(json.loads(capsys.readouterr().out))


def test_c51_training_causal_and_dense():
    found = flops(LLAMA2_7B, Step(4, 8192, recompute="none"))
    assert found["products"] == 6 * 6_607_077_376 * 4 * 8192
    assert f"{found['products'] / 1e12:.2f}" == "1299.00"
    assert found["attention_dense"] == 12 * 32 * 4096 * 8192**2 * 4
    assert f"{found['attention_dense'] / 1e12:.2f}" == "422.21"
    assert f"{found['attention_halved'] / 1e12:.2f}" == "211.11"
    assert found["attention_causal"] == found["attention_dense"] * 8193 // (2 * 8192)  # each query sees itself


def test_c51_training_of_latent_attention():
    keys = {
        "model_type": "deepseek_v2", "hidden_size": 2048, "num_hidden_layers": 27, "num_attention_heads": 16,
        "num_key_value_heads": 16, "q_lora_rank": None, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64, "v_head_dim": 128, "intermediate_size": 10944, "moe_intermediate_size": 1408,
        "n_routed_experts": 64, "num_experts_per_tok": 6, "n_shared_experts": 2, "first_k_dense_replace": 1,
        "n_group": 1, "topk_group": 1, "topk_method": "greedy", "vocab_size": 102400,
        "max_position_embeddings": 163840,
    }  # fmt: skip
    found = flops(config_from_keys(keys), Step(4, 8192, recompute="none"))
    assert found["attention_dense"] == 6 * 27 * 16 * (192 + 128) * 8192**2 * 4
    assert f"{found['attention_dense'] / 1e12:.2f}" == "222.65"
    assert f"{found['attention_halved'] / 1e12:.2f}" == "111.33"
    assert f"{found['products'] / 1e12:.2f}" == "481.95"


def test_c52_training_of_a_mixture():
    found = flops(MIXTRAL, Step(1, 1024, recompute="none"))
    active = 12_879_925_248 - 131_072_000 - 65 * 4096
    assert found["dense"] == 6 * active * 1024 + 12 * 32 * 4096 * 1024**2
    assert f"{found['dense'] / 1e12:.2f}" == "79.98"


def test_c54_attention_is_twelve_a_token():
    layers, heads, width, tokens = 32, 32, 128, 512
    found = flops(LLAMA2_7B, Step(1, tokens, recompute="none"))
    assert found["attention_dense"] == 12 * layers * heads * width * tokens * tokens
    assert found["attention_halved"] == 6 * layers * heads * width * tokens * tokens


@pytest.mark.parametrize(("config", "ffn"), [(LLAMA2_7B, 11008), (LLAMA3_8B, 14336)])
def test_c55_a_gated_feed_forward(config, ffn):
    run = passes(config, 1, 64, 64)[0]
    lines = zip(run.bound.lines, costs(run), strict=True)
    assert sum(cost.flops for line, cost in lines if line.op.name.startswith("mlp.")) == 6 * 64 * 4096 * ffn


def test_c56_the_floor_of_a_decode():
    found = report(LLAMA2_7B, Request(prompt=128, precision="fp16", device="a100-80gb-sxm"))
    assert f"{found['weight_bytes']['fp16'] / 1e9:.2f}" == "13.48"
    decode = found["passes"][1]
    assert f"{found['weight_bytes']['fp16'] / 2.039e12 * 1e3:.1f}" == "6.6"
    assert decode["seconds"] > 6.4e-3  # all weights but the token table


def test_c57_what_a_batch_reads():
    config = qwen3(4096, 36, 32, 8, 12288)
    decode = passes(config, 64, 9000, 9000)[1]
    assert 2 * total(decode).cache_read == 64 * 9000 * 147_456
    assert f"{64 * 9000 * 147_456 / 1e9:.1f}" == "84.9"
