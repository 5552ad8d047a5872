"""model_types granitemoe and granitemoeshared: the mixtral block with factors, the second with a shared expert.

Source: IBM Granite team 2024, "Granite 3.0 Language Models"; Hugging Face defaults.
"""

from __future__ import annotations

from archcalc.families.experts import ROUTING, routed
from archcalc.families.granite import IGNORED as MULTIPLIERS
from archcalc.families.granite import factors
from archcalc.families.llama import rotary_decoder
from archcalc.families.shared import same
from archcalc.keys import Keys

ALIASES = {"num_local_experts": ("num_experts",)}
IGNORED = ROUTING | MULTIPLIERS
SIZES = {
    "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_experts_per_tok": 2, "num_local_experts": 8,
}  # fmt: skip
RELEASE = {"granitemoe": SIZES, "granitemoeshared": SIZES}


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    beside = k.raw["model_type"] == "granitemoeshared"
    shared = k.count("shared_intermediate_size", default=0) if beside else 0
    return rotary_decoder(k, same(routed(k, "intermediate_size", shared=shared)), positions=2048, **factors(k))
