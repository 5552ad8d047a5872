"""Every family against transformers with the same weights; and whether the comparison would notice a mistake."""

from dataclasses import replace

import pytest
import torch

pytest.importorskip("transformers", reason="transformers is not installed")

import models
from archcalc.errors import ConfigError
from archcalc.hf import config_from_keys
from models import Cache
from models import attention as attention_module
from models import stack as stack_module
from models.cli import main
from models.kernels import Eager
from models.names import HUGGING_FACE
from models.parity.checkpoints import CHECKPOINTS, tiny
from models.parity.compare import Pair, in_half, worst
from models.parity.report import FP32, Row, row

REQUIRED = [
    "gpt2", "gpt_neox", "llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3_text", "olmo2", "phi3", "falcon",
    "mixtral", "qwen3_moe", "deepseek_v3", "gpt_oss", "qwen3_next", "mamba2", "nemotron_h", "bert", "t5", "bart",
    "marian", "whisper",
]  # fmt: skip


def test_no_family_is_forgotten():
    assert set(REQUIRED) <= set(CHECKPOINTS)
    compared = {tiny(name)[1]["model_type"] for name in CHECKPOINTS}
    assert compared == set(HUGGING_FACE)  # what is loaded has been compared


def test_a_family_that_was_never_compared_is_built_without_values_only():
    keys = tiny("llama")[1] | {"model_type": "granite", "architectures": ["GraniteForCausalLM"]}
    config = config_from_keys(keys)
    assert models.build(config, device="meta").lm_head.weight.is_meta
    with pytest.raises(ConfigError, match="model_type='granite': its parts are built, but were never compared"):
        models.build(config)


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_the_same_logits_in_every_way_and_type(name):
    found = row(name)
    assert found.problems == []
    assert len(found.fp32) == (1 if CHECKPOINTS[name][0].endswith("MaskedLM") else 5)


def deeper(change):
    """A change to the config of the first layer's mixer that our model was built from."""

    def broken(pair, monkeypatch):
        mixer = next(m for m in pair.ours.modules() if isinstance(m, attention_module.Attention))
        mixer.config = replace(mixer.config, **change(mixer.config))

    return broken


def patched(owner, name, change):
    """A function of ours with a mistake."""

    def broken(pair, monkeypatch):
        monkeypatch.setattr(owner, name, change(getattr(owner, name)))

    return broken


def norms(pair, monkeypatch):
    for module in pair.ours.modules():
        if type(module).__name__ == "RMSNorm":
            module.config = replace(module.config, offset=0.0)


def one_weight(pair, monkeypatch):
    with torch.no_grad():
        weight = next(iter(pair.ours.parameters()))
        weight[5, 3] += 0.01


def experts(**fields):
    def broken(pair, monkeypatch):
        for module in pair.ours.modules():
            if type(module).__name__ == "MixtureOfExperts":
                module.config = replace(module.config, **fields)

    return broken


def without_sinks(pair, monkeypatch):
    for layer in pair.ours.layers:
        layer.self_attn.sinks = None


def shifted(function):
    return lambda x, cos, sin, positions: function(x, cos, sin, (positions + 1) % 2 + positions)


def slot_lost(function):
    return lambda cache, new, indices: function(cache, new, (indices - 1).clamp(min=0))


# A family, and a mistake that its comparison must see.
MISTAKES = {
    "one weight of 2,000": ("llama", one_weight),
    "a scale of 1.001": ("qwen3", deeper(lambda a: {"scale": 1.001 * a.head_dim**-0.5})),
    "no soft cap": ("gemma2", deeper(lambda a: {"logit_softcap": None})),
    "a scale without its offset": ("gemma3_text", norms),
    "positions that are one off": ("gpt_neox", patched(Eager, "rotary", lambda f: staticmethod(shifted(f)))),
    "padding that is seen": ("olmo2", patched(stack_module, "causal_mask", lambda f: lambda *of, padded: f(*of))),
    "a window of one more": (
        "mistral",
        patched(stack_module, "causal_mask", lambda f: lambda q, k, w, c, padded: f(q, k, w and w + 1, c, padded)),
    ),
    "no window": (
        "phi3",
        patched(stack_module, "causal_mask", lambda f: lambda q, k, w, c, padded: f(q, k, None, c, padded)),
    ),
    "buckets of another reach": (
        "t5",
        patched(stack_module, "distance_buckets", lambda f: lambda a, b, reach, c: f(a, b, reach - 4, c)),
    ),
    "rotary over the whole head": ("qwen3_next", patched(attention_module, "turned", lambda f: lambda x, *_: x)),
    "shares that do not sum to one": ("mixtral", experts(norm_topk_prob=False)),
    "experts of any group": ("deepseek_v3", experts(n_group=1, topk_group=1)),
    "no sinks": ("gpt_oss", without_sinks),
    "a state that forgets nothing": (
        "mamba2",
        lambda pair, monkeypatch: [layer.mixer.A_log.data.fill_(-20) for layer in pair.ours.layers],
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_seen(monkeypatch, mistake):
    name, breaks = MISTAKES[mistake]
    pair = Pair(*tiny(name))
    expected = pair.expected()
    assert worst(pair.full(), expected) <= FP32
    breaks(pair, monkeypatch)
    assert worst(pair.full(), expected) > 10 * FP32


def test_a_lost_slot_is_seen(monkeypatch):
    pair = Pair(*tiny("llama"))
    expected = pair.expected()
    monkeypatch.setattr(Eager, "cache_write", staticmethod(slot_lost(Eager.cache_write)))
    assert worst(pair.in_parts(6, 1, 1, 1, 1, 1, static=True), expected) > 10 * FP32


def test_half_precision_has_a_bound_that_a_mistake_breaks(monkeypatch):
    theirs, ours = in_half("llama", torch.bfloat16)
    assert Row("llama", {}, {torch.bfloat16: (theirs, ours)}).problems == []
    monkeypatch.setattr(Eager, "rotary", staticmethod(shifted(Eager.rotary)))
    theirs, ours = in_half("llama", torch.bfloat16)
    (problem,) = Row("llama", {}, {torch.bfloat16: (theirs, ours)}).problems
    assert "bf16 differs by" in problem


@pytest.mark.parametrize("name", ["mamba2", "qwen3_next", "mistral"])
def test_damage_to_what_is_kept_is_seen(monkeypatch, name):
    pair = Pair(*tiny(name))
    expected, original = pair.expected(), Cache.advance

    def damaged(cache, *of):
        for layer in cache.layers if cache.length else ():
            layer.tensors = tuple(0.9 * tensor for tensor in layer.tensors)
        return original(cache, *of)

    monkeypatch.setattr(Cache, "advance", damaged)
    assert worst(pair.in_parts(6, 5), expected) > 10 * FP32


def test_a_windowed_layer_keeps_its_window_after_padding():
    pair = Pair(*tiny("mistral"))
    cache = Cache.empty(pair.config, 3)
    tokens = torch.randint(4, 60, (3, 20))
    positions = torch.arange(20) - torch.tensor([[0], [4], [9]])
    pieces = [pair.ours(ids, at, cache) for ids, at in zip(tokens.split(4, 1), positions.split(4, 1), strict=True)]
    assert {tensor.shape[-2] for layer in cache.layers for tensor in layer.tensors} == {5}
    alone = pair.ours(tokens[2:, 9:])
    assert torch.allclose(torch.cat(pieces, 1)[2:, 9:], alone, atol=1e-4)


def test_the_command(tmp_path, capsys):
    out = tmp_path / "parity.md"
    assert main(["parity", "llama", "bert", "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "2 of 2 within their bounds" in printed and "| llama" in printed
    written = out.read_text()
    assert "# Parity with transformers" in written and "python -m models parity llama bert --out" in written


def test_the_command_says_what_is_outside(capsys, monkeypatch):
    monkeypatch.setattr(Eager, "rotary", staticmethod(shifted(Eager.rotary)))
    assert main(["parity", "llama"]) == 1
    assert "0 of 1 within their bounds\nllama: full differs by" in capsys.readouterr().out


def test_an_unknown_family_is_named(capsys):
    assert main(["parity", "lama"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("models: family='lama'") and "llama" in error and error.count("\n") == 1
