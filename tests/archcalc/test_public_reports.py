"""Questions that people asked in public about memory, parameters and FLOPs, with the right answers.

Each case is an issue or a server's log: a model, a shape and a number. Where the number that was reported was wrong,
the test has the right one and, where it says how it came about, the wrong one too.
"""

import json
from pathlib import Path

from archcalc import Request, preset, report
from archcalc.cost import active_parameters, bound, cache_elements, parameters, passes, total
from archcalc.counts import parameter_counts
from archcalc.hf import config_from_keys, load_config
from archcalc.memory import Paged, Reserved, parse_bytes, reserved
from archcalc.precision import precision

# The keys of released models that matter here, from their cards and the defaults of transformers 5.24.
CONFIGS = json.loads((Path(__file__).parent / "data" / "public_configs.json").read_text())
GiB = 2**30
BF16, FP8 = precision("bf16"), precision("fp8")


def model(name: str, **overrides):
    return config_from_keys(CONFIGS[name], overrides)


LLAMA2_7B, LLAMA2_13B, LLAMA3_8B = map(model, ("llama2-7b", "llama2-13b", "llama3-8b"))
LLAMA3_405B, MIXTRAL = model("llama3.1-405b"), preset("mixtral-8x7b")


def per_token(config, stored=BF16, tp: int = 1) -> int:
    return Reserved(config, Paged(tp=tp), stored).per_token()


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


def test_c03_a_rank_of_eight():
    engine = Paged(tp=8, windowed_as_full=True)
    cache = Reserved(model("llama-4-scout"), engine, BF16)
    assert cache.per_token() == 24_576 == 196_608 // 8
    assert cache.request(2**20) == 24 * GiB
    assert cache.longest(24 * GiB) == 2**20
    assert Reserved(model("llama-4-scout"), Paged(tp=8), BF16).request(2**20) < 8 * GiB  # 36 of 48 layers hold a chunk


def test_c05_windowed_layers_charged_in_full():
    config, length = model("gemma-4-31b"), 262_144
    as_full = Reserved(config, Paged(windowed_as_full=True), BF16)
    assert as_full.per_token() == 901_120
    assert as_full.request(length) == 220 * GiB
    kv = report(config, Request(prompt=length, kv_precision="bf16"))["kv_cache"]
    assert kv["slope_bytes_per_token"] == 81_920
    assert kv["constant_bytes"] == 819_200 * 1024
    assert f"{kv['bytes'] / GiB:.2f}" == "20.78"


def test_c07_concurrency_of_a_model_of_windows_only():
    config = model("starcoder2-3b")
    pool = 2_198_512
    found = reserved(config, Paged(prefill_chunk=8192, room_blocks=pool // 16), 1, 16_384, 0, BF16)
    assert found["blocks_per_request"] == 769 and 769 * 16 == 12_304
    assert found["fits"]["tokens"] == pool
    assert f"{found['fits']['concurrency']:.2f}" == "178.68"
    assert found["fits"]["longest_context"] == 2**40  # windows end: any length
    naive = reserved(config, Paged(windowed_as_full=True, room_blocks=pool // 16), 1, 16_384, 0, BF16)
    assert f"{naive['fits']['concurrency']:.2f}" == "134.19"


def test_c09_keys_and_values_of_eight_bits():
    config = model("qwen3-30b-a3b")
    assert per_token(config, FP8) == 49_152
    for room, tokens in (("10.55GiB", 230_528), ("10.12GiB", 221_000)):
        assert abs(parse_bytes(room) / tokens / 49_152 - 1) < 0.001


def test_c10_latents():
    config = model("mistral-small-4")
    cache = Reserved(config, Paged(), BF16)
    assert cache.per_token() == 23_040
    assert cache.request(1_048_576) == 22.5 * GiB
    assert cache.longest(parse_bytes("17.39GiB")) // 100 == 8_104
    assert per_token(config, tp=8) == 23_040  # every rank has all latents


def test_c12_a_latent_is_cached_once():
    config = model("deepseek-v3")
    assert per_token(config) == 70_272 == 61 * (512 + 64) * 2
    assert 2 * 61 * 512 == 62_464  # elements, what the wrong formula gives
    one = total(passes(config, 1, 1024, 1024)[0])
    assert one.flops > 0


def test_c13_and_c37_head_dim_is_a_key():
    assert per_token(model("qwen3-4b")) == 147_456 == 2 * 73_728
    config = model("qwen3-0.6b")
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
    assert parameters(model("llama2-7b", num_key_value_heads=8, intermediate_size=14336)) == 7_241_732_096


def test_c22_four_ranks():
    config = model("qwen3-32b")
    assert per_token(config) == 262_144
    assert per_token(config, tp=4) == 65_536
    room = 814 * 256 * 262_144
    blocks = [
        reserved(config, Paged(tp=tp, block_size=256, room=room), 1, 1024, 0, BF16)["fits"]["blocks"] for tp in (1, 4)
    ]
    assert blocks == [814, 4 * 814]


def test_c25_a_constant_and_a_slope():
    """Where layers end at a window, bytes a token is no number: cost(T) = constant + slope·T."""
    config = model("half-windows")
    for context in (64, 1000, 5000):
        kv = report(config, Request(prompt=8, context=context))["kv_cache"]
        assert kv["bytes"] == kv["constant_bytes"] + kv["slope_bytes_per_token"] * context
    config = load_config(Path(__file__).parent / "data" / "configs" / "deepseek-v4-flash.json")
    for context in (4096, 2**20):
        kv = report(config, Request(prompt=8, context=context))["kv_cache"]
        assert kv["bytes"] == kv["constant_bytes"] + kv["slope_bytes_per_token"] * context
        assert kv["slope_bytes_per_token"] < kv["bytes_per_token"] / 4  # entries of 4 and of 128 tokens


def test_c26_to_c28_a_tied_head_counts_once():
    assert parameters(model("stories15m")) == 15_191_712 == 24_407_712 - 32_000 * 288
    assert parameters(model("llama3.2-1b")) == 1_235_814_400 == 1_498_482_688 - 128_256 * 2_048
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
    assert linear // 2 + 262_144_000 + 266_240 + 39_976_960 == 3_540_389_888
    assert parameters(LLAMA2_13B) == 13_015_864_320
    linear = parameter_counts(LLAMA2_13B)["matrices of blocks"]["total"]
    assert linear == 12_687_769_600
    assert linear // 2 + parameters(LLAMA2_13B) - linear == 6_671_979_520


def test_c41_and_c43_bytes_of_a_file():
    config = model("bloom-560m")
    assert parameters(config) == 559_214_592
    stored = report(config, Request(prompt=16))["weight_bytes"]["fp32"]
    assert f"{stored / GiB:.3f}" == "2.083"
    assert f"{(stored + 250_880 * 1024 * 4) / GiB:.2f}" == "3.04"  # the head twice
    assert stored > 2**31 - 1 >= 4 * 536_870_911


def test_c56_the_floor_of_a_decode():
    found = report(LLAMA2_7B, Request(prompt=128, precision="fp16", device="a100-80gb-sxm"))
    assert f"{found['weight_bytes']['fp16'] / 1e9:.2f}" == "13.48"
    decode = found["passes"][1]
    assert f"{found['weight_bytes']['fp16'] / 2.039e12 * 1e3:.1f}" == "6.6"
    assert decode["seconds"] > 6.4e-3  # all weights but the token table


def test_c57_what_a_batch_reads():
    config = model("qwen3-8b")
    decode = passes(config, 64, 9000, 9000)[1]
    assert 2 * total(decode).cache_read == 64 * 9000 * 147_456
    assert f"{64 * 9000 * 147_456 / 1e9:.1f}" == "84.9"
