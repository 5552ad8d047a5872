"""One tiny Hugging Face model a family, by its config.json: sizes differ, so that a swapped axis shows."""

import json

import torch

LLAMA = {
    "vocab_size": 61, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 40, "max_position_embeddings": 64, "tie_word_embeddings": False,
}  # fmt: skip
WIDE = LLAMA | {"head_dim": 16}  # heads together are wider than the model
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 24}
LATENT = {
    "kv_lora_rank": 20, "q_lora_rank": 28, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 10,
    "num_key_value_heads": 4,
}  # fmt: skip
NEOX = {name: value for name, value in LLAMA.items() if name != "num_key_value_heads"}
FALCON = {
    "vocab_size": 67, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 64,
}  # fmt: skip
MAMBA = {"vocab_size": 71, "hidden_size": 32, "num_hidden_layers": 2, "num_heads": 8, "head_dim": 8, "state_size": 12,
         "n_groups": 2, "expand": 2, "conv_kernel": 4, "chunk_size": 4}  # fmt: skip
BERT = {
    "vocab_size": 73, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40,
    "max_position_embeddings": 64, "type_vocab_size": 3,
}  # fmt: skip
T5 = {
    "vocab_size": 79, "d_model": 32, "d_kv": 12, "d_ff": 40, "num_layers": 3, "num_decoder_layers": 2, "num_heads": 4,
    "relative_attention_num_buckets": 8, "relative_attention_max_distance": 20, "decoder_start_token_id": 0,
}  # fmt: skip
BART = {
    "vocab_size": 83, "d_model": 32, "encoder_layers": 3, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 8, "encoder_ffn_dim": 40, "decoder_ffn_dim": 44, "pad_token_id": 1,
    "decoder_start_token_id": 2,
}  # fmt: skip

# name: (class, what its config.json says beyond the defaults)
CHECKPOINTS = {
    "gpt2": ("GPT2LMHeadModel", {"vocab_size": 61, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}),
    "gpt_neox": ("GPTNeoXForCausalLM", NEOX | {"rotary_pct": 0.5}),
    "gpt_neox_serial": ("GPTNeoXForCausalLM", NEOX | {"use_parallel_residual": False}),
    "llama": ("LlamaForCausalLM", WIDE),
    "llama_biases_tied": (
        "LlamaForCausalLM",
        LLAMA | {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    ),
    "mistral": ("MistralForCausalLM", WIDE | {"sliding_window": 5}),
    "qwen2": ("Qwen2ForCausalLM", LLAMA | {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3ForCausalLM", WIDE),
    "gemma2": (
        "Gemma2ForCausalLM",
        WIDE | {"num_hidden_layers": 3, "sliding_window": 4, "tie_word_embeddings": True, "query_pre_attn_scalar": 24,
                "attn_logit_softcapping": 3.0, "final_logit_softcapping": 2.0},
    ),
    "gemma3_text": (
        "Gemma3ForCausalLM",
        WIDE | {"num_hidden_layers": 4, "sliding_window": 4, "tie_word_embeddings": True, "query_pre_attn_scalar": 24,
                "layer_types": ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"]},
    ),
    "olmo2": ("Olmo2ForCausalLM", LLAMA),
    "phi3": ("Phi3ForCausalLM", LLAMA | {"sliding_window": 6}),
    "falcon": ("FalconForCausalLM", FALCON | {"multi_query": True, "parallel_attn": True, "bias": False}),
    "falcon_new": ("FalconForCausalLM", FALCON | {"new_decoder_architecture": True, "num_kv_heads": 2}),
    "falcon_alibi": (
        "FalconForCausalLM",
        # Not eager: transformers 5.24 adds the bias by distance twice there, to the scores and to the mask.
        FALCON
        | {"multi_query": False, "parallel_attn": False, "bias": True, "alibi": True, "attn_implementation": "sdpa"},
    ),
    "mixtral": ("MixtralForCausalLM", WIDE | {"num_local_experts": 5, "num_experts_per_tok": 2}),
    "qwen3_moe": (
        "Qwen3MoeForCausalLM",
        WIDE | EXPERTS | {"num_experts": 6, "num_hidden_layers": 3, "mlp_only_layers": [1], "norm_topk_prob": True},
    ),
    "deepseek_v3": (
        "DeepseekV3ForCausalLM",
        LLAMA | LATENT | EXPERTS | {
            "num_hidden_layers": 3, "n_routed_experts": 8, "n_shared_experts": 2, "n_group": 2, "topk_group": 1,
            "first_k_dense_replace": 1, "num_nextn_predict_layers": 0,
        },
    ),
    "gpt_oss": (
        "GptOssForCausalLM",
        WIDE | {"num_local_experts": 6, "num_experts_per_tok": 2, "sliding_window": 5, "num_hidden_layers": 3},
    ),
    "qwen3_next": (
        "Qwen3NextForCausalLM",
        WIDE | EXPERTS | {
            "num_hidden_layers": 4, "num_experts": 7, "shared_expert_intermediate_size": 20,
            "linear_num_key_heads": 2, "linear_num_value_heads": 6, "linear_key_head_dim": 8,
            "linear_value_head_dim": 10, "linear_conv_kernel_dim": 3,
            # A head's first output is next to nothing. Normed with 1e-6, rounding shows: even the two forms that
            # transformers has of this mixer are then 2e-5 apart.
            "rms_norm_eps": 1e-3,
        },
    ),
    "mamba2": ("Mamba2ForCausalLM", MAMBA),
    "nemotron_h": (
        "NemotronHForCausalLM",
        {
            "vocab_size": 97, "hidden_size": 32, "layers_block_type": ["mamba", "attention", "moe", "mamba"],
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 40,
            "mamba_num_heads": 6, "mamba_head_dim": 8, "ssm_state_size": 12, "n_groups": 2, "conv_kernel": 3,
            "chunk_size": 4, "n_routed_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
            "moe_shared_expert_intermediate_size": 20, "max_position_embeddings": 64,
        },
    ),
    "bert": ("BertForMaskedLM", BERT),
    "t5": ("T5ForConditionalGeneration", T5 | {"feed_forward_proj": "relu"}),
    "t5_gated": ("T5ForConditionalGeneration", T5 | {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),
    "bart": ("BartForConditionalGeneration", BART | {"max_position_embeddings": 64}),
    "marian": ("MarianMTModel", BART | {"max_position_embeddings": 64, "decoder_vocab_size": 83}),
    "whisper": (
        "WhisperForConditionalGeneration",
        BART | {"num_mel_bins": 10, "max_source_positions": 22, "max_target_positions": 64, "eos_token_id": 3},
    ),
}  # fmt: skip


def tiny(name: str, seed: int = 0):
    """(the transformers model of that name with lively weights, what its config.json says)."""
    import transformers

    class_name, values = CHECKPOINTS[name]
    kind = getattr(transformers, class_name)
    # Token ids of the released vocabulary would lie outside of the tiny one.
    special = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    config = kind.config_class(**special | {"attn_implementation": "eager"} | values, architectures=[class_name])
    with torch.random.fork_rng():
        torch.manual_seed(seed)  # some vectors are drawn when the class is made
        model = kind(config).float().eval()
    enliven(model, seed)
    return model, json.loads(config.to_json_string())


@torch.no_grad()
def enliven(model: torch.nn.Module, seed: int = 0) -> None:
    """Random weights under which every one of them shows in the output: scales around one, shifts not zero."""
    generator = torch.Generator().manual_seed(seed)

    def noise(tensor: torch.Tensor) -> torch.Tensor:
        return torch.randn(tensor.shape, generator=generator) * 0.2

    computed = {"inv_freq", "embed_positions"}  # constants, whatever a checkpoint stores
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        constant = not tensor.requires_grad and not name.endswith(("e_score_correction_bias", "final_logits_bias"))
        if constant or not tensor.is_floating_point() or (computed & set(name.split(".")) and not tensor.requires_grad):
            continue
        tensor.copy_(noise(tensor) if tensor.ndim > 1 else tensor + noise(tensor))
