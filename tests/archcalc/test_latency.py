"""The law of latency on attention whose products have other widths than a head."""

import pytest

from archcalc.cost import Pass, bound
from archcalc.latency import Machine, predict
from archcalc.precision import precision
from archcalc.presets import preset

# A machine on which nothing takes time but (query head, query, key): a second each.
PAIRS = Machine(float("inf"), float("inf"), 1.0, key_seconds=0.0, pair_seconds=1.0, launch_seconds=0.0)
BATCH, TOKENS, CONTEXT = 2, 3, 11


@pytest.mark.parametrize(
    ("name", "products"),
    [("llama3-8b", 2), ("deepseek-v2-lite", 3)],  # scores and context; scores of latent and rotary keys, and context
)
def test_pairs_are_counted_whatever_a_product_is_wide(name, products):
    config = preset(name)
    run = Pass("prefill", {"B": BATCH, "T": TOKENS, "S": CONTEXT, "R": 1}, bound(config)[-1])
    mixer, layers = config.decoder.layers[0].self_attn, len(config.decoder.layers)
    pairs = BATCH * mixer.num_attention_heads * TOKENS * CONTEXT
    assert predict(run, PAIRS, precision("fp16")) == products * layers * pairs
