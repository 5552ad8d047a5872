"""What eager transformers multiplies: the counts of a FLOP counter, kept for 53 small models and made anew for one
model of each mixer that has an eager form of its own.
"""

import json
from pathlib import Path

import pytest

from archcalc.config import (
    Attention,
    Block,
    FeedForward,
    GatedDeltaNet,
    LightningAttention,
    ModelConfig,
    Norm,
    Recurrent,
    Stack,
)  # fmt: skip
from archcalc.cost import Pass, bound, cache_elements, total
from archcalc.eager import eager_flops
from archcalc.errors import ConfigError
from archcalc.hf import config_from_keys

DATA = Path(__file__).parent / "data"
SMALL = json.loads((DATA / "small_flops_all.json").read_text())["models"]
TOYS = json.loads((DATA / "recurrent_toys.json").read_text())
NORM, MLP = Norm("rmsnorm", 1e-6), FeedForward(96, "silu", gated=True)


def small(name: str) -> ModelConfig:
    row = SMALL[name]
    return config_from_keys(row["config"] | {"architectures": [row["architecture"]]})


@pytest.mark.parametrize("name", SMALL)
def test_the_small_models(name):
    """The step of mamba-130m ran without the cache, as a first call of one token."""
    config = small(name)
    for call, flops in SMALL[name]["flops"].items():
        batch, tokens = map(int, call.removeprefix("decode1_after_").split("x"))
        step = (1, 1 if name == "mamba-130m" else tokens + 1)
        assert (call, eager_flops(config, batch, *(step if "decode" in call else (tokens, tokens)))) == (call, flops)


@pytest.mark.parametrize("name", SMALL)
def test_caches_of_the_small_models(name):
    """Of a window transformers keeps W - 1 tokens, where a query sees W. Lightning's state is not recorded."""
    config = small(name)
    for shape, elements in SMALL[name]["cache"].items():
        batch, tokens = map(int, shape.split("x"))
        held = cache_elements(bound(config)[1], batch, tokens, config.source_tokens(tokens) if config.encoder else 0)
        one_more = 0
        for block in config.decoder.layers if config.decoder else ():
            mixer = block.self_attn
            if reach := getattr(mixer, "sliding_window", None) or getattr(mixer, "attention_chunk_size", None):
                one_more += (tokens >= reach) * 2 * batch * mixer.num_key_value_heads * mixer.head_dim
        state = 0 if name == "minimax-text-01" else held.state
        found = held.cache - one_more + state
        assert ({"self": found, "cross": held.cross} if config.encoder and config.decoder else found) == elements


def ident(keys: dict) -> str:
    return f"{keys['model_type']} {TOYS.index(keys)}"


# One toy of each eager form, and two where grouping or norms make a second.
KINDS = ("falcon_h1", "falcon_mamba", "lfm2", "mamba", "mamba2", "minimax", "nemotron_h", "qwen3_5_text")
FIRST = {keys["model_type"]: keys for keys in reversed(TOYS)}
RUN = [FIRST[kind] for kind in KINDS] + [k for k in TOYS if k.get("n_groups") == 4 or k.get("mlp_only_layers")]
RUN += [FIRST["recurrent_gemma"]]


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("keys", RUN, ids=ident)
def test_a_counter_agrees(keys):
    """A first call, one of a single token after it, and one of several (which minimax cannot do)."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    from torch.utils.flop_counter import FlopCounterMode

    rest = {name: value for name, value in keys.items() if name != "model_type"}
    config = transformers.AutoConfig.for_model(keys["model_type"], **rest)
    model = transformers.AutoModelForCausalLM.from_config(
        config, attn_implementation="eager", experts_implementation="eager"
    )
    model, mine, own_kind = model.eval().float(), config_from_keys(keys), keys["model_type"] == "minimax"
    cache, context = None if own_kind else transformers.DynamicCache(config=config), 0
    for tokens in (11, 1) if own_kind else (11, 1, 3):
        context += tokens
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            out = model(torch.full((2, tokens), 5), cache=cache, use_cache=True)
        cache = cache or out["past_key_values"]
        assert (tokens, eager_flops(mine, 2, tokens, context)) == (tokens, counter.get_total_flops())


def one_block(mixer) -> ModelConfig:
    return ModelConfig(100, 64, 4096, Stack((Block(mixer, MLP, NORM),), NORM))


def difference(mixer, tokens: int, context: int) -> int:
    """Eager FLOPs of 3 sequences beyond those of the op list."""
    config = one_block(mixer)
    dims = {"B": 3, "T": tokens, "S": context, "R": tokens}
    return eager_flops(config, 3, tokens, context) - total(Pass("", dims, bound(config)[1]), dense=True).flops


def test_plain_attention_needs_no_difference():
    plain = Attention(4, 2, 16)
    assert difference(plain, 40, 40) == difference(plain, 1, 41) == 0
    assert eager_flops(one_block(plain), 3, 40, 40) - eager_flops(one_block(plain), 3, 40, 40, logits=1) == (
        2 * 3 * 39 * 64 * 100
    )


def test_a_window_of_8_leaves_7_cached_keys():
    windowed = Attention(4, 2, 16, sliding_window=8)
    assert difference(windowed, 40, 40) == 0
    assert difference(windowed, 1, 5) == 0
    assert difference(windowed, 1, 41) == 2 * 3 * 4 * 32 * (8 - 41)


def test_by_hand():
    delta = GatedDeltaNet(2, 4, 16, 12, 4, NORM)
    channels, heads = 2 * 2 * 16 + 4 * 12, 3 * 4
    chunk = 2 * (2 * 64 * 64 * 16 + 64 * 64 * 12 + 3 * 64 * 16 * 12)
    rule = 3 * 2 * 16 * 12
    assert difference(delta, 65, 65) == heads * (2 * chunk - 65 * rule) + 3 * 2 * channels * 4 * 3
    assert difference(delta, 1, 66) == -heads * rule + 3 * 2 * channels * 4
    lightning = LightningAttention(4, 16, NORM, block_size=8)
    assert difference(lightning, 20, 20) == 4 * 3 * 4 * 16 * (8 * 8 * 2 + 4 * 4)
    assert difference(lightning, 1, 21) == 0


def test_a_mixer_without_a_known_eager_form_is_refused():
    class Unknown(Recurrent):
        @property
        def dims(self):
            return {}

        def ops(self, name):
            return ()

    with pytest.raises(ConfigError, match="Unknown: what eager code multiplies"):
        eager_flops(one_block(Unknown()), 1, 4, 4)
