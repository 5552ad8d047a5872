"""The same weights in Hugging Face's models, through the files that those write."""

import pytest
import torch
from tiny_models import DECODER_ONLY, assert_close, ids, llama_like

import models
from archcalc.config import Attention, FeedForward, MixtureOfExperts, Rotary

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

LLAMA = {
    "vocab_size": 61,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 40,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "attn_implementation": "eager",
}


def compare(theirs, config, folder, **how_saved):
    for parameter in theirs.parameters():
        parameter.data.normal_(std=0.3)  # norms and biases too: a swapped one must show
    theirs.eval().save_pretrained(folder, **how_saved)
    ours = models.load(folder, config)
    with torch.no_grad():
        assert_close(ours(ids(3, 11)), theirs(ids(3, 11)).logits)


@pytest.mark.parametrize("how_saved", [{}, {"max_shard_size": "8KB"}], ids=["one file", "sharded"])
def test_llama(tmp_path, how_saved):
    compare(
        transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA)), DECODER_ONLY["llama"], tmp_path, **how_saved
    )
    assert (tmp_path / "model.safetensors.index.json").exists() == bool(how_saved)


def test_llama_with_biases_and_tied(tmp_path):
    config = transformers.LlamaConfig(**LLAMA | {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True})
    attention = Attention(4, 2, 8, True, True, True, True, rotary=Rotary(10000.0))
    mlp = FeedForward(40, "silu", gated=True, bias=True)
    compare(transformers.LlamaForCausalLM(config), llama_like(attention, mlp, tied=True), tmp_path)


def test_gpt2(tmp_path):
    config = transformers.GPT2Config(
        vocab_size=61, n_embd=16, n_layer=2, n_head=4, n_positions=64, attn_implementation="eager"
    )
    compare(transformers.GPT2LMHeadModel(config), DECODER_ONLY["gpt"], tmp_path)


def test_mistral_with_a_window(tmp_path):
    config = transformers.MistralConfig(**LLAMA | {"sliding_window": 4})
    window = Attention(4, 2, 8, rotary=Rotary(10000.0), sliding_window=4)
    compare(transformers.MistralForCausalLM(config), llama_like(window), tmp_path)


def test_mixtral(tmp_path):
    mixture = {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None}
    config = transformers.MixtralConfig(**LLAMA | mixture)
    attention = Attention(4, 2, 8, rotary=Rotary(config.rope_parameters["rope_theta"]))
    mlp = MixtureOfExperts(FeedForward(40, "silu", gated=True), 4, 2)
    compare(transformers.MixtralForCausalLM(config), llama_like(attention, mlp), tmp_path)
