"""model_type whisper: pre-LayerNorm encoder of spectrograms behind two convolutions, and a decoder of text.

The encoder always gets `max_source_positions` tokens, to which any sound is padded. Its sinusoids are a table of the
checkpoint, the decoder's positions are learned; keys have no bias.
Source: Radford et al. 2022, arXiv:2212.04356; Hugging Face defaults.
"""

from __future__ import annotations

from archcalc.config import ConvFrontend, Norm
from archcalc.families import pair
from archcalc.families.bart import sizes
from archcalc.keys import Keys

ALIASES = pair.ALIASES | {"max_position_embeddings": ("max_target_positions",)}
PER_STACK = pair.PER_STACK
IGNORED = pair.IGNORED | {
    "apply_spec_augment", "mask_time_prob", "mask_time_length", "mask_time_min_masks", "mask_feature_prob",
    "mask_feature_length", "mask_feature_min_masks", "median_filter_width", "classifier_proj_size", "lang_ids",
    "use_weighted_layer_sum", "alignment_heads", "lang_to_id", "task_to_id", "no_timestamps_token_id",
    "is_multilingual",
}  # fmt: skip
RELEASE = {"whisper": sizes(51865, 384, (4, 4), 6, 1536, 448) | {"num_mel_bins": 80, "max_source_positions": 1500}}


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    norm = Norm("layernorm", 1e-5)  # fixed: the family has no key for its epsilon
    source = k.int("max_source_positions")
    return pair.pair_model(
        k,
        pair.two_stacks(k, norm, "pre", norm, k_bias=False),
        max_position_embeddings=k.int("max_position_embeddings"),
        max_source_positions=source,
        position_embedding="learned",
        frontend=ConvFrontend(k.int("num_mel_bins"), source),
    )
