"""Quantized checkpoints: bytes against published files and sums over a model's own tensors, and refusals by name."""

from math import ceil, prod

import pytest

from archcalc.cost import parameters
from archcalc.errors import ConfigError
from archcalc.hf import config_from_keys, load_config
from archcalc.quantization.checkpoint import checkpoint_bytes, checkpoint_row, packed_elements
from archcalc.quantization.module_names import Names, canonical
from archcalc.quantization.schemes import Scheme

LLAMA2 = {
    "model_type": "llama", "vocab_size": 32000, "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    "intermediate_size": 11008, "torch_dtype": "float16",
}  # fmt: skip
LLAMA2_13B = LLAMA2 | {"hidden_size": 5120, "num_hidden_layers": 40, "num_attention_heads": 40}
LLAMA2_13B |= {"intermediate_size": 13824}
GPT_OSS = {
    "model_type": "gpt_oss", "vocab_size": 201088, "hidden_size": 2880, "num_hidden_layers": 24, "head_dim": 64,
    "num_attention_heads": 64, "num_key_value_heads": 8, "intermediate_size": 2880, "num_local_experts": 32,
    "num_experts_per_tok": 4, "max_position_embeddings": 131072, "sliding_window": 128, "tie_word_embeddings": False,
}  # fmt: skip
DEEPSEEK_V3 = {
    "model_type": "deepseek_v3", "vocab_size": 129280, "hidden_size": 7168, "num_hidden_layers": 61,
    "num_attention_heads": 128, "num_key_value_heads": 128, "intermediate_size": 18432, "moe_intermediate_size": 2048,
    "first_k_dense_replace": 3, "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8,
    "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "max_position_embeddings": 163840, "n_group": 8, "topk_group": 4,
}  # fmt: skip
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": [128, 128]}
MXFP4 = {
    "quant_method": "mxfp4",
    "modules_to_not_convert": [
        "model.layers.*.self_attn",
        "model.layers.*.mlp.router",
        "model.embed_tokens",
        "lm_head",
    ],
}
NF4 = {"load_in_4bit": True, "quant_method": "bitsandbytes", "bnb_4bit_quant_type": "nf4"}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 64, "desc_act": True, "sym": True}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True, "version": "gemm"}
NVFP4 = {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16, "exclude_modules": ["lm_head"]}


def quantized(keys: dict, quantization: dict, **more):
    return config_from_keys(keys | more | {"quantization_config": quantization})


# --- published files -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layers", "experts", "size"),
    [(24, 32, 13_761_264_768), (36, 128, 65_248_815_744)],  # total_size of the index of the published files
)
def test_gpt_oss_files(layers, experts, size):
    config = quantized(GPT_OSS, MXFP4, num_hidden_layers=layers, num_local_experts=experts)
    assert checkpoint_bytes(config).total.bytes == size


def test_deepseek_v3_file():
    """The published files, about 688.59 GB with the names of 92,000 tensors (130 bytes each), hold a layer more.

    It predicts a second token and has an embedding and a head of its own; no ModelConfig counts it.
    """
    total = checkpoint_bytes(quantized(DEEPSEEK_V3, FP8)).total.bytes
    deeper = checkpoint_bytes(quantized(DEEPSEEK_V3, FP8, num_hidden_layers=62)).total.bytes
    width, vocab = 7168, 129280
    extra = 2 * (2 * width * width + 3 * width + 2 * vocab * width)  # in 16 bits: eh_proj, norms, embedding and head
    assert total == 673_150_611_808
    assert deeper + extra + 92_000 * 130 == pytest.approx(688.59e9, rel=1e-5)


def test_four_bits_of_llama_2_are_no_count_of_parameters():
    seven, thirteen = quantized(LLAMA2, NF4), quantized(LLAMA2_13B, NF4)
    assert parameters(seven) == 6_738_415_616
    assert packed_elements(seven) == 6_476_005_376 // 2 + 262_144_000 + 266_240 == 3_500_412_928
    assert parameters(thirteen) == 13_015_864_320
    assert packed_elements(thirteen) == 12_687_769_600 // 2 + 328_094_720 == 6_671_979_520


# --- one matrix, by hand -------------------------------------------------------------------------------------------

ROWS, COLUMNS = 200, 256  # rows out, columns in
MATRIX = {  # what each method stores for it: (bytes of weights, bytes of scales and the like)
    "fp8": (FP8, ROWS * COLUMNS, 4 * 2 * 2),
    "fp8 by matrix": (FP8 | {"weight_block_size": None}, ROWS * COLUMNS, 4),
    "fp8 static": (FP8 | {"weight_block_size": None, "activation_scheme": "static"}, ROWS * COLUMNS, 8),
    # the shapes that bitsandbytes 0.50 gives a matrix of 200 x 256
    "nf4": (NF4, 25600, 4 * 800 + 4 * 16),
    "nf4 twice": (NF4 | {"bnb_4bit_use_double_quant": True}, 25600, 800 + 4 * 4 + 4 * 16 + 4 * 256),
    "int8": ({"load_in_8bit": True, "quant_method": "bitsandbytes"}, ROWS * COLUMNS, 4 * ROWS + 1),
    "gptq": (GPTQ, 4 * COLUMNS // 8 * ROWS, 2 * 4 * ROWS + 4 * 4 * ROWS // 8 + 4 * COLUMNS),
    "gptq, 3 bits": (
        GPTQ | {"bits": 3},
        4 * COLUMNS * 3 // 32 * ROWS,
        2 * 4 * ROWS + 4 * 4 * ceil(ROWS * 3 / 32) + 4 * COLUMNS,
    ),
    "gptq by column": (GPTQ | {"group_size": -1}, 4 * COLUMNS // 8 * ROWS, 2 * ROWS + 4 * ROWS // 8 + 4 * COLUMNS),
    "awq": (AWQ, 4 * COLUMNS * ROWS // 8, 2 * 4 * ROWS + 4 * 4 * ROWS // 8),
    "nvfp4": (NVFP4, ROWS * COLUMNS // 2, ROWS * COLUMNS // 16 + 8),
    "modelopt fp8": (NVFP4 | {"quant_algo": "FP8"}, ROWS * COLUMNS, 8),
    "mxfp8": (NVFP4 | {"quant_algo": "MXFP8"}, ROWS * COLUMNS, ROWS * COLUMNS // 32),
    "packed int4": (
        {
            "quant_method": "compressed-tensors",
            "format": "pack-quantized",
            "config_groups": {
                "a": {"targets": ["Linear"], "weights": {"num_bits": 4, "strategy": "group", "group_size": 32}}
            },
            "ignore": ["lm_head"],
        },
        ROWS * COLUMNS // 2,
        2 * ROWS * 8 + 2 * 8,
    ),
    "channel fp8": (
        {
            "quant_method": "compressed-tensors",
            "format": "float-quantized",
            "config_groups": {
                "a": {
                    "targets": ["Linear"],
                    "weights": {"num_bits": 8, "type": "float", "strategy": "channel"},
                    "input_activations": {"num_bits": 8, "type": "float", "dynamic": True},
                }
            },
            "ignore": ["lm_head"],
        },
        ROWS * COLUMNS,
        2 * ROWS,
    ),
}


@pytest.mark.parametrize("name", MATRIX)
def test_one_matrix(name):
    quantization, weights, scales = MATRIX[name]
    config = config_from_keys(
        {"model_type": "llama", "vocab_size": 10, "hidden_size": COLUMNS, "num_hidden_layers": 1,
         "num_attention_heads": 2, "intermediate_size": ROWS, "torch_dtype": "bfloat16",
         "quantization_config": quantization}
    )  # fmt: skip
    found = {line: stored for line, _, stored in checkpoint_bytes(config).lines}
    assert found["layers.mlp.up_proj"][:3] == (weights, scales, 0)
    assert found["lm_head"] == (0, 0, 2 * 10 * COLUMNS, 10 * COLUMNS)
    assert found["layers.mlp_norm"] == (0, 0, 2 * COLUMNS, COLUMNS)
    assert parameters(config) == parameters(config_from_keys({**config.keys, "quantization_config": None}))


def test_a_scheme_rounds_up():
    assert Scheme(4, (1, 32), 8).stored(3, 33) == (3 * 17, 3 * 2, 3 * 17)


# --- a model's own tensors -----------------------------------------------------------------------------------------

TOY = {"vocab_size": 96, "hidden_size": 192, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 160}
ROUTED = {"num_experts_per_tok": 2, "moe_intermediate_size": 96}
LATENT = {
    "q_lora_rank": 48, "kv_lora_rank": 96, "qk_nope_head_dim": 32, "qk_rope_head_dim": 32, "v_head_dim": 64,
    "n_routed_experts": 4, "n_shared_experts": 1, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1,
}  # fmt: skip
TOYS = {
    "llama": TOY | {"attention_bias": True, "num_key_value_heads": 1},
    "llama tied": TOY | {"model_type": "llama", "tie_word_embeddings": True},
    "gpt2": {"n_embd": 192, "n_layer": 2, "n_head": 3, "vocab_size": 96, "n_positions": 32},
    "phi3": TOY | {"pad_token_id": 0},
    "qwen2": TOY | {"num_key_value_heads": 3},
    "qwen3_moe": TOY | ROUTED | {"num_experts": 4, "head_dim": 64, "num_key_value_heads": 1},
    "qwen3_next": TOY | ROUTED | {
        "num_experts": 4, "shared_expert_intermediate_size": 96, "linear_num_key_heads": 2, "head_dim": 64,
        "linear_num_value_heads": 4, "linear_key_head_dim": 24, "linear_value_head_dim": 40, "num_key_value_heads": 1,
        "layer_types": ["linear_attention", "full_attention"],
    },
    "gpt_neox": TOY | {"rotary_pct": 0.25},
    "falcon_mamba": {"vocab_size": 96, "hidden_size": 96, "num_hidden_layers": 2, "state_size": 8},
    "deepseek_v3": TOY | ROUTED | LATENT | {"num_key_value_heads": 3},
}  # fmt: skip
METHODS = {
    "fp8": (FP8, lambda o, i: o * i + 4 * ceil(o / 128) * ceil(i / 128)),
    "fp8 by matrix": (FP8 | {"weight_block_size": None}, lambda o, i: o * i + 4),
    "nvfp4": (NVFP4, lambda o, i: o * (ceil(i / 2) + ceil(i / 16)) + 8),
    "nf4": (
        NF4 | {"bnb_4bit_use_double_quant": True},
        lambda o, i: ceil(o * i / 2) + ceil(o * i / 64) + 4 * ceil(ceil(o * i / 64) / 256) + 64 + 1024,
    ),
}


def tensors(model):
    """(matrices as (out, in), whether packed; elements beside them) of the tensors that a checkpoint has."""
    modules, plain, packed = dict(model.named_modules()), 0, []
    for name, p in model.named_parameters():
        owner, kind = modules[name.rpartition(".")[0]], name.rpartition(".")[2]
        if kind == "weight" and type(owner).__name__ == "Conv1D":
            packed.append((p.shape[1], p.shape[0]))
        elif kind == "weight" and type(owner).__name__ == "Linear" and not name.startswith(("lm_head", "embed_out")):
            packed.append(tuple(p.shape))
        elif p.ndim == 3 and ".experts." in name:  # published files have a matrix an expert and projection
            halves = 2 if "gate_up" in name else 1
            packed += [(p.shape[1] // halves, p.shape[2])] * (p.shape[0] * halves)
        else:
            plain += p.numel()
    return packed, plain


@pytest.mark.parametrize("name", TOYS)
def test_bytes_are_the_sum_over_a_models_tensors(name):
    pytest.importorskip("transformers")
    from archcalc.against import built

    keys = {"model_type": name, "torch_dtype": "bfloat16"} | TOYS[name]
    model = built(keys)
    packed, plain = tensors(model)
    stored = set(model.state_dict())
    held = sum(b.numel() for n, b in model.named_buffers() if n in stored)
    assert sum(map(prod, packed)) + plain == parameters(config_from_keys(keys))
    for method, (quantization, size) in METHODS.items():
        if method == "nf4" and "experts" in str(keys):
            continue
        config = quantized(keys, quantization)
        expected = sum(size(o, i) for o, i in packed) + 2 * plain + 4 * held
        assert checkpoint_bytes(config).total.bytes == expected, method


# --- which modules -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("published", "ours"),
    [
        ("model.layers.3.self_attn.kv_a_proj_with_mqa", "layers.3.self_attn.kv_a_proj"),
        ("language_model.model.layers.1.block_sparse_moe.experts.7.w2", "layers.1.mlp.experts.down_proj"),
        ("model.language_model.layers.0.mlp.shared_expert*", "layers.0.mlp.shared_expert*"),
        ("backbone.layers.4.mixer.gate", "layers.4.mixer.router"),
        ("gate", "router"),
        ("head", "lm_head"),
    ],
)
def test_canonical_names(published, ours):
    assert canonical(published) == ours


@pytest.mark.parametrize(
    ("pattern", "fits", "other"),
    [
        ("model.layers.1.self_attn", "layers.1.self_attn.q_proj", "layers.10.self_attn.q_proj"),
        ("model.layers.1*", "layers.10.self_attn.q_proj", "layers.2.self_attn.q_proj"),
        ("model.layers.1.*", "layers.1.mlp.up_proj", "layers.10.mlp.up_proj"),
        ("model.layers.*.self_attn", "layers.7.self_attn.o_proj", "layers.7.mlp.up_proj"),
        ("*.mlp.shared_expert.*", "layers.7.mlp.shared_expert.up_proj", "layers.7.mlp.up_proj"),
        ("re:.*mlp\\.(gate|up|gate_up|down)_proj.*", "layers.0.mlp.up_proj", "layers.0.mlp.experts.up_proj"),
        ("re:.*shared_experts.*", "layers.0.mlp.shared_expert.up_proj", "layers.0.mlp.experts.up_proj"),
        ("model.layers.0.linear_attn*", "layers.0.mixer.in_proj_z", "layers.0.mlp.experts.up_proj"),
        ("backbone.layers.5.mixer.q_proj", "layers.5.self_attn.q_proj", "layers.5.self_attn.k_proj"),
    ],
)
def test_a_name_fits_what_it_names(pattern, fits, other):
    assert Names((pattern,)).fit(fits)
    assert not Names((pattern,)).fit(other)


def test_layers_that_are_left_out():
    whole = checkpoint_bytes(quantized(LLAMA2, FP8)).total
    some = checkpoint_bytes(
        quantized(LLAMA2, FP8 | {"modules_to_not_convert": ["lm_head", "model.layers.3.mlp.up_proj", "model.layers.0"]})
    ).total
    up, layer = 4096 * 11008, 4 * 4096**2 + 3 * 4096 * 11008
    assert whole.packed - some.packed == up + layer
    assert some.plain - whole.plain == 2 * (up + layer)


def test_rules_say_each_module():
    layers = {f"model.layers.{i}.mlp.{m}": {"quant_algo": "NVFP4"} for i in range(32) for m in ("up_proj", "gate_proj")}
    layers["model.layers.0.self_attn.q_proj"] = {"quant_algo": "FP8"}
    mixed = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": layers}
    total = checkpoint_bytes(quantized(LLAMA2, mixed)).total
    assert total.packed == 64 * 4096 * 11008 // 2 + 4096**2
    assert total.elements > total.packed


def test_a_name_that_fits_nothing_is_refused_where_it_matters():
    keys = FP8 | {"modules_to_not_convert": ["lm_head", "model.layers.0.mlp.wq"]}
    config = quantized(LLAMA2, keys)
    assert parameters(config) == 6_738_415_616
    with pytest.raises(ConfigError, match="wq' names no matrix of this model"):
        checkpoint_bytes(config)
    assert "wq" in checkpoint_row(config)["not_derived"]
    fine = ["lm_head", "model.layers.0.input_layernorm", "model.layers.32.mlp.up_proj", "mtp.fc*", "model.visual*"]
    assert checkpoint_row(quantized(LLAMA2, FP8 | {"modules_to_not_convert": fine}))["total"] > 0


def test_a_model_without_quantization_has_no_row():
    config = config_from_keys(LLAMA2)
    assert config.quantization is None
    assert checkpoint_row(config) is None
    with pytest.raises(ConfigError, match="quantization_config: missing"):
        checkpoint_bytes(config)
    assert quantized(LLAMA2, FP8) != config


# --- refusals ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("quantization", "problem"),
    [
        ({"quant_method": "quip"}, "quant_method='quip': not understood; use one of fp8, mxfp4"),
        ({"bits": 4}, "quantization_config.quant_method: missing"),
        ("fp8", "quantization_config='fp8': must be an object"),
        (FP8 | {"scale_block": 3}, "quantization_config.scale_block=3: not understood"),
        (FP8 | {"weight_block_size": 128}, "weight_block_size=128: must be two sizes"),
        (FP8 | {"weight_block_size": [0, 128]}, "must be two sizes"),
        (FP8 | {"modules_to_not_convert": "lm_head"}, "must be a list of names"),
        (FP8 | {"activation_scheme": "both"}, "activation_scheme='both'"),
        (GPTQ | {"bits": 5}, "quantization_config.bits=5: not understood; use one of 2, 3, 4, 8"),
        (GPTQ | {"group_size": 0}, "group_size=0: must be a whole number"),
        ({"quant_method": "gptq", "bits": 4}, "group_size: missing"),
        (AWQ | {"version": "new"}, "version='new'"),
        (NF4 | {"load_in_8bit": True}, "load_in_4bit=True with load_in_8bit=True"),
        ({"quant_method": "compressed-tensors"}, "config_groups: missing"),
        (NVFP4 | {"quant_algo": "W9"}, "quant_algo='W9'"),
        ({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}, "quantized_layers: missing"),
        (NVFP4 | {"config_groups": {"a": {"weights": {"num_bits": 8}}}}, "num_bits=8 with quant_algo=NVFP4"),
    ],
)
def test_what_is_not_understood_is_refused(quantization, problem):
    with pytest.raises(ConfigError) as caught:
        quantized(LLAMA2, quantization)
    assert problem in str(caught.value)


def test_model_optimizer_writes_a_file_beside_the_config(tmp_path):
    import json

    (tmp_path / "config.json").write_text(json.dumps(LLAMA2))
    assert load_config(tmp_path).quantization is None
    beside = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(beside))
    found = load_config(tmp_path)
    assert found.quantization.method == "modelopt"
    assert checkpoint_row(found)["packed"] == 6_476_005_376
