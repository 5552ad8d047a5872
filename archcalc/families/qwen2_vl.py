"""model_type qwen2_vl_text, qwen2_5_vl_text and their composites in the old flat spelling: the qwen2 shape.

Source: Wang et al. 2024, arXiv:2409.12191; Bai et al. 2025, arXiv:2502.13923.
"""

from __future__ import annotations

from archcalc.families.qwen2 import biased_decoder
from archcalc.keys import Keys

IGNORED = frozenset({
    "use_mrope", "vision_start_token_id", "vision_end_token_id", "vision_token_id", "image_token_id", "video_token_id",
})  # fmt: skip
TEXT = {
    "vocab_size": 152064, "hidden_size": 8192, "num_hidden_layers": 80, "num_attention_heads": 64,
    "intermediate_size": 29568,
}  # fmt: skip
RELEASE = {"qwen2_vl_text": TEXT, "qwen2_5_vl_text": TEXT, "qwen2_vl": TEXT, "qwen2_5_vl": TEXT}


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    return biased_decoder(k, kv_heads=8, positions=32768, full_layers=80, theta=1e6, eps=1e-5)
