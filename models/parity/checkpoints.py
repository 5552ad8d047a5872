"""One tiny Hugging Face model a family, by its config.json: sizes differ, so that a swapped axis shows."""

import json

import torch

LLAMA = {
    "vocab_size": 61, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 40, "max_position_embeddings": 64, "tie_word_embeddings": False,
}  # fmt: skip
TIED = {"tie_word_embeddings": True}
WIDE = LLAMA | {"head_dim": 16}  # heads together are wider than the model
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 24}
GROUPED = {
    "num_hidden_layers": 3, "n_routed_experts": 8, "n_shared_experts": 2, "n_group": 2, "topk_group": 1,
    "first_k_dense_replace": 1,
}  # fmt: skip
LATENT = {
    "kv_lora_rank": 20, "q_lora_rank": 28, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 10,
    "num_key_value_heads": 4,
}  # fmt: skip
GPT2 = {"vocab_size": 61, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
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
ROBERTA = BERT | {"pad_token_id": 1, "type_vocab_size": 1}
T5 = {
    "vocab_size": 79, "d_model": 32, "d_kv": 12, "d_ff": 40, "num_layers": 3, "num_decoder_layers": 2, "num_heads": 4,
    "relative_attention_num_buckets": 8, "relative_attention_max_distance": 20, "decoder_start_token_id": 0,
}  # fmt: skip
BART = {
    "vocab_size": 83, "d_model": 32, "encoder_layers": 3, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 8, "encoder_ffn_dim": 40, "decoder_ffn_dim": 44, "pad_token_id": 1,
    "decoder_start_token_id": 2,
}  # fmt: skip
OPT = {
    "vocab_size": 61, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 40,
    "max_position_embeddings": 64, "word_embed_proj_dim": 32,
}  # fmt: skip
YARN = {  # limits between which, of so small a head, some pairs lie, some stay as they are and some are stretched
    "rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "original_max_position_embeddings": 16, "beta_fast": 0.8,
    "beta_slow": 0.25,
}  # fmt: skip

# name: (class, what its config.json says beyond the defaults)
CHECKPOINTS = {
    "gpt2": ("GPT2LMHeadModel", GPT2),
    "gpt_neox": ("GPTNeoXForCausalLM", NEOX | {"rotary_pct": 0.5}),
    "gpt_neox_serial": ("GPTNeoXForCausalLM", NEOX | {"use_parallel_residual": False}),
    "llama": ("LlamaForCausalLM", WIDE),
    "llama_biases_tied": (
        "LlamaForCausalLM",
        LLAMA | {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    ),
    "mistral": ("MistralForCausalLM", WIDE | {"sliding_window": 5}),
    "qwen2": ("Qwen2ForCausalLM", LLAMA | TIED),
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
        LLAMA | LATENT | EXPERTS | GROUPED | {"num_nextn_predict_layers": 0},
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
    "gemma": ("GemmaForCausalLM", WIDE | TIED | {"num_key_value_heads": 1}),
    "olmo": ("OlmoForCausalLM", LLAMA),
    "olmo3": (
        "Olmo3ForCausalLM",
        LLAMA | {"num_hidden_layers": 4, "sliding_window": 4, "rope_scaling": YARN | {"attention_factor": 1.2}},
    ),
    "olmoe": ("OlmoeForCausalLM", LLAMA | {"num_experts": 6, "num_experts_per_tok": 2}),
    "qwen2_moe": (
        "Qwen2MoeForCausalLM",
        LLAMA | EXPERTS | {
            "num_hidden_layers": 3, "num_experts": 6, "mlp_only_layers": [1], "shared_expert_intermediate_size": 20,
        },
    ),
    "phi": ("PhiForCausalLM", LLAMA | {"partial_rotary_factor": 0.5}),
    "phi_qk_norm": ("PhiForCausalLM", LLAMA | {"qk_layernorm": True}),
    "starcoder2": ("Starcoder2ForCausalLM", LLAMA | TIED | {"sliding_window": 5}),
    "opt": ("OPTForCausalLM", OPT),
    "opt_post_norm": ("OPTForCausalLM", OPT | {"do_layer_norm_before": False}),
    "bloom": ("BloomForCausalLM", {"vocab_size": 67, "hidden_size": 30, "n_layer": 2, "n_head": 6}),
    "gptj": (
        "GPTJForCausalLM",
        {"vocab_size": 61, "n_embd": 48, "n_layer": 2, "n_head": 4, "n_positions": 64, "rotary_dim": 8,
         "tie_word_embeddings": False},
    ),
    "cohere": ("CohereForCausalLM", LLAMA | TIED | {"logit_scale": 0.3}),
    "cohere2": ("Cohere2ForCausalLM", WIDE | TIED | {"logit_scale": 0.3, "num_hidden_layers": 4, "sliding_window": 4}),
    "glm": ("GlmForCausalLM", WIDE | {"attention_bias": True}),
    "glm4": ("Glm4ForCausalLM", WIDE | {"attention_bias": True}),
    "gpt_bigcode": ("GPTBigCodeForCausalLM", GPT2),
    "gpt_bigcode_heads": ("GPTBigCodeForCausalLM", GPT2 | {"multi_query": False}),
    "stablelm": ("StableLmForCausalLM", LLAMA | {"use_qkv_bias": True, "partial_rotary_factor": 0.5}),
    "stablelm_parallel": ("StableLmForCausalLM", LLAMA | {"use_parallel_residual": True}),
    "smollm3": ("SmolLM3ForCausalLM", LLAMA | {"num_hidden_layers": 4, "no_rope_layer_interval": 2}),
    "seed_oss": ("SeedOssForCausalLM", WIDE | {"attention_bias": True, "attention_out_bias": False}),
    "exaone4": (
        "Exaone4ForCausalLM",
        LLAMA | {"num_hidden_layers": 4, "sliding_window": 4, "sliding_window_pattern": 4},
    ),
    "nemotron": ("NemotronForCausalLM", LLAMA | {"partial_rotary_factor": 0.5}),
    "deepseek_v2": (
        "DeepseekV2ForCausalLM",
        LLAMA | LATENT | EXPERTS | {
            "num_hidden_layers": 3, "n_routed_experts": 6, "n_shared_experts": 2, "first_k_dense_replace": 1,
            "topk_method": "greedy", "routed_scaling_factor": 1.5, "q_lora_rank": None,
            "rope_scaling": YARN | {"mscale": 0.707, "mscale_all_dim": 0.707},
        },
    ),
    "biogpt": (
        "BioGptForCausalLM",
        {"vocab_size": 61, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
         "intermediate_size": 40, "max_position_embeddings": 64},
    ),
    "roberta": ("RobertaForMaskedLM", ROBERTA),
    "xlm_roberta": ("XLMRobertaForMaskedLM", ROBERTA),
    "distilbert": (
        "DistilBertForMaskedLM",
        {"vocab_size": 73, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 40, "max_position_embeddings": 64},
    ),
    "mt5": ("MT5ForConditionalGeneration", T5 | {"tie_word_embeddings": False}),
    "umt5": ("UMT5ForConditionalGeneration", T5 | {"tie_word_embeddings": False}),
    "mbart": ("MBartForConditionalGeneration", BART | {"max_position_embeddings": 64, "scale_embedding": True}),
    "pegasus": ("PegasusForConditionalGeneration", BART | {"max_position_embeddings": 64, "scale_embedding": True}),
    "arcee": ("ArceeForCausalLM", WIDE),
    "ministral": ("MinistralForCausalLM", WIDE | {"sliding_window": 5}),
    "cwm": (
        "CwmForCausalLM",
        WIDE | {"num_hidden_layers": 5, "sliding_window": 4, "rope_scaling": {"rope_type": "default"}},
    ),
    "helium": ("HeliumForCausalLM", LLAMA | {"head_dim": 8}),
    "ernie4_5": ("Ernie4_5ForCausalLM", WIDE | TIED | {"use_bias": True}),
    "vaultgemma": (
        "VaultGemmaForCausalLM",
        WIDE | {"num_hidden_layers": 3, "sliding_window": 4, "tie_word_embeddings": True, "query_pre_attn_scalar": 24,
                "attn_logit_softcapping": 3.0, "final_logit_softcapping": 2.0},
    ),
    "jais2": ("Jais2ForCausalLM", LLAMA),
    "persimmon": ("PersimmonForCausalLM", NEOX),
    "gpt_neo": (
        "GPTNeoForCausalLM",
        {"vocab_size": 61, "hidden_size": 32, "num_layers": 2, "num_heads": 4, "window_size": 4,
         "attention_types": [[["global", "local"], 1]], "max_position_embeddings": 64},
    ),
    "flex_olmo": ("FlexOlmoForCausalLM", LLAMA | {"num_experts": 5, "num_experts_per_tok": 2}),
    "dots1": ("Dots1ForCausalLM", WIDE | EXPERTS | GROUPED),
    "glm4_moe": ("Glm4MoeForCausalLM", WIDE | EXPERTS | GROUPED | {"use_qk_norm": True, "attention_bias": True}),
    "minimax_m2": ("MiniMaxM2ForCausalLM", WIDE | {"num_local_experts": 6, "num_experts_per_tok": 2}),
    "youtu": ("YoutuForCausalLM", LLAMA | LATENT),
    "glm4_moe_lite": ("Glm4MoeLiteForCausalLM", LLAMA | LATENT | EXPERTS | GROUPED),
    "eurobert": ("EuroBertForMaskedLM", LLAMA | {"mask_token_id": 3}),
    "camembert": ("CamembertForMaskedLM", ROBERTA),
    "plbart": ("PLBartForConditionalGeneration", BART | {"max_position_embeddings": 64}),
    "blenderbot": ("BlenderbotForConditionalGeneration", BART | {"max_position_embeddings": 64}),
    # Rotary positions that are stretched, and other numbers of heads and windowed layers.
    "llama_llama3": (
        "LlamaForCausalLM",
        WIDE | {"rope_scaling": {"rope_type": "llama3", "rope_theta": 100.0, "factor": 4.0, "low_freq_factor": 0.25,
                                 "high_freq_factor": 1.0, "original_max_position_embeddings": 8}},
    ),
    "llama_yarn": ("LlamaForCausalLM", WIDE | {"rope_scaling": YARN}),
    "deepseek_v3_yarn": (
        "DeepseekV3ForCausalLM",
        LLAMA | LATENT | EXPERTS | GROUPED | {
            "num_nextn_predict_layers": 0, "rope_scaling": YARN | {"mscale": 1.0, "mscale_all_dim": 0.7},
        },
    ),
    "phi3_longrope": (
        "Phi3ForCausalLM",
        # Shorter than every sequence and chunk: transformers chooses by the whole sequence, a growing cache by what it
        # holds so far.
        LLAMA | {
            "original_max_position_embeddings": 3, "sliding_window": None,
            "rope_scaling": {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0, 1.1, 1.2, 1.3],
                             "long_factor": [1.5, 2.0, 3.0, 5.0], "original_max_position_embeddings": 3},
        },
    ),
    "gemma3_linear": (
        "Gemma3ForCausalLM",
        WIDE | {
            "num_hidden_layers": 2, "sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"],
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e3},
                "full_attention": {"rope_type": "linear", "rope_theta": 1e4, "factor": 8.0},
            },
        },
    ),
    "mistral_one_key_head": ("MistralForCausalLM", WIDE | {"num_attention_heads": 6, "num_key_value_heads": 1}),
    "qwen2_windows": (
        "Qwen2ForCausalLM",
        LLAMA | {"num_attention_heads": 2, "num_hidden_layers": 3, "use_sliding_window": True, "sliding_window": 4,
                 "max_window_layers": 1},
    ),
}  # fmt: skip


def tiny(name: str, seed: int = 0):
    """(the transformers model of that name with lively weights, what its config.json says)."""
    import transformers

    transformers.logging.set_verbosity_error()  # notes on kernels that are not installed
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
