"""model_type bart, mbart, plbart, pegasus, blenderbot and blenderbot-small: encoder-decoders with biases.

They differ in where norms stand, a norm of the embeddings, and positions: learned ones, of which BART's tables have two
more rows, or Pegasus's sinusoids, a table of the checkpoint. Every checkpoint stores a bias of the logits as a buffer.
Source: Lewis et al. 2019, arXiv:1910.13461; Liu et al. 2020, arXiv:2001.08210; Zhang et al. 2019, arXiv:1912.08777;
Roller et al. 2020, arXiv:2004.13637; Hugging Face defaults.
"""

from __future__ import annotations

from archcalc.config import Embedding, Head, Norm
from archcalc.families import pair
from archcalc.keys import Keys

ALIASES, PER_STACK = pair.ALIASES, pair.PER_STACK
IGNORED = pair.IGNORED | {"do_blenderbot_90_layernorm", "layernorm_variant"}
# model_type -> norm_placement, a norm of the embeddings, positions, rows beyond max_position_embeddings.
SHAPES = {
    "bart": ("post", True, "learned", 2),
    "plbart": ("post", True, "learned", 2),
    "mbart": ("pre", True, "learned", 2),
    "pegasus": ("pre", False, "sinusoidal", 0),
    "blenderbot": ("pre", False, "learned", 0),
    "blenderbot-small": ("post", True, "learned", 0),
}
NAMES = (
    "vocab_size", "hidden_size", "encoder_layers", "decoder_layers", "encoder_attention_heads",
    "decoder_attention_heads", "encoder_ffn_dim", "decoder_ffn_dim", "max_position_embeddings",
)  # fmt: skip


def sizes(vocab: int, hidden: int, layers: tuple[int, int], heads: int, inner: int, positions: int) -> dict:
    """The sizes of a release, by key; those that both stacks have under the names of either."""
    return dict(zip(NAMES, (vocab, hidden, *layers, heads, heads, inner, inner, positions), strict=True))


LARGE = sizes(50265, 1024, (12, 12), 16, 4096, 1024)
RELEASE = {
    "bart": LARGE,
    "mbart": LARGE,
    "pegasus": LARGE,
    "plbart": sizes(50005, 768, (6, 6), 12, 3072, 1024),
    "blenderbot": sizes(8008, 2560, (2, 24), 32, 10240, 128),
    "blenderbot-small": sizes(50265, 512, (8, 8), 16, 2048, 512),
}


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    placement, normed, positions, offset = SHAPES[k.str("model_type")]
    fixed = {"normalize_before": placement == "pre", "add_final_layer_norm": placement == "pre"}
    fixed |= {"normalize_embedding": normed, "static_position_embeddings": positions == "sinusoidal"}
    for name, value in (fixed | {"extra_layer_norm": False}).items():
        k.must_be(name, value, "the Hugging Face class of this model_type has it otherwise")
    norm = Norm("layernorm", 1e-5)  # fixed: the families have no key for its epsilon
    stacks = pair.two_stacks(k, norm, placement, norm if placement == "pre" else None)
    return pair.pair_model(
        k,
        stacks,
        tie=None,
        max_position_embeddings=k.int("max_position_embeddings"),
        position_embedding=positions,
        embedding=Embedding(
            position_offset=offset,
            stored_sinusoids=positions == "sinusoidal",
            norm=norm if normed else None,
            sinusoid_halves=positions == "sinusoidal",
        ),
        head=Head(buffer_bias=True),
    )
