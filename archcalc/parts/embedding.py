"""What comes before the first block and after the last one, beside the token embedding and the head's matrix."""

from __future__ import annotations

from dataclasses import dataclass

from archcalc.checks import positive
from archcalc.errors import ConfigError, one_of
from archcalc.ops import Op, Tensor, activation, linear, weight
from archcalc.parts.norm import Norm, norm_op


@dataclass(frozen=True)
class Embedding:
    """Extras of the embedding.

    Args:
        embedding_size: width of the embedding where it is not hidden_size; a projection follows (and, into the head,
            one back). `projection_bias`: of those two. `narrow`: positions, types and norm come before the projection
            and have that width too.
        type_vocab_size: rows of a table of token types that is added; 0 for none.
        position_offset: rows of a learned position table beyond max_position_embeddings.
        stored_sinusoids: the sinusoids are a table of the checkpoint and counted as one.
        norm: of the sum.
        sinusoid_halves: all sines come before all cosines, instead of in turns.
    """

    embedding_size: int | None = None
    projection_bias: bool = False
    narrow: bool = False
    type_vocab_size: int = 0
    position_offset: int = 0
    stored_sinusoids: bool = False
    norm: Norm | None = None
    sinusoid_halves: bool = False

    def __post_init__(self):
        if self.embedding_size is not None:
            positive(embedding_size=self.embedding_size)
        elif self.narrow:
            raise ConfigError("narrow=True: needs a width of its own; give embedding_size")
        if self.type_vocab_size:
            positive(type_vocab_size=self.type_vocab_size)
        if self.position_offset:
            positive(position_offset=self.position_offset)


@dataclass(frozen=True)
class Head:
    """What makes the output of a stack's last hidden states.

    Args:
        kind: `lm` makes logits over the vocabulary; `mlm` transforms first (a matrix, an activation and `norm`);
            `labels` makes one number a label, of the first token or of `every_token`, behind a matrix (and a `norm`)
            where `dense`; `pooler` is one matrix over the first token; `none` ends at the hidden states.
        bias: of the logits. dense_bias: of the matrix in front of them. labels: how many.
        buffer_bias: logits have a bias that is stored as a buffer.
        logit_softcap: logits become cap·tanh(logits/cap).
        contacts: a regression from the attention maps of all layers and heads, which runs only when asked for.
        beside: a second head.
        scale: the hidden states are multiplied by it before the logits (a tied T5: 1 / sqrt(hidden_size)).
    """

    kind: str = "lm"
    bias: bool = False
    norm: Norm | None = None
    logit_softcap: float | None = None
    dense: bool = True
    dense_bias: bool = True
    buffer_bias: bool = False
    labels: int = 0
    every_token: bool = False
    contacts: bool = False
    beside: Head | None = None
    scale: float = 1.0

    def __post_init__(self):
        one_of("head", self.kind, ("lm", "mlm", "labels", "pooler", "none"))
        if self.kind == "labels":
            positive(num_labels=self.labels)

    @property
    def has_logits(self) -> bool:
        return self.kind in ("lm", "mlm")

    def ops(self, width: str = "D") -> tuple[Op, ...]:
        """All but the matrix onto the vocabulary; `width` is the axis of what that one reads."""
        if self.kind == "mlm":
            made = "e" if width == "D" else width
            dense = linear("transform.dense", "BRD", f"D{made}", f"BR{made}", self.dense_bias)
            return dense, *((norm_op(self.norm, "transform.norm", f"BR{made}", made),) if self.norm else ())
        if self.kind == "pooler":
            return (linear("pooler", "BD", "De", "Be", True),)
        return _label_ops(self) if self.kind == "labels" else ()


def _label_ops(head: Head) -> tuple[Op, ...]:
    tokens, read, found = "BR" if head.every_token else "B", "D", ()
    if head.dense:
        read, found = "e", (linear("classifier.dense", f"{tokens}D", "De", f"{tokens}e", head.dense_bias),)
        found += (norm_op(head.norm, "classifier.norm", f"{tokens}e", "e"),) if head.norm else ()
    return *found, linear("classifier", f"{tokens}{read}", f"{read}O", f"{tokens}O", head.bias)


# The regression of attention maps: owned, and run only when asked for.
CONTACTS = Op("contact_head", (weight("μo"), weight("o")), Tensor("chip", "μo"))


@dataclass(frozen=True)
class ConvFrontend:
    """Whisper's input: two convolutions of width `kernel` over spectrogram frames, the second with stride 2.

    The encoder always gets `tokens` of them, half of the frames to which any sound is padded. Its positions are
    sinusoids that the checkpoint stores, so they count as a table.
    Source: Radford et al. 2022, arXiv:2212.04356, section 2.2.
    """

    num_mel_bins: int
    tokens: int
    kernel: int = 3

    def __post_init__(self):
        positive(num_mel_bins=self.num_mel_bins, max_source_positions=self.tokens, kernel=self.kernel)

    @property
    def dims(self) -> dict[str, int]:
        """z mel bins, k taps, q frames a token."""
        return {"z": self.num_mel_bins, "k": self.kernel, "q": 2}

    def ops(self) -> tuple[Op, ...]:
        """T are the tokens that are left, half of the frames; `e` is another name for D."""
        first = (activation("BTqz"), weight("zkD"), weight("D"))
        return (
            Op("conv1", first, activation("BTqD")),
            Op("conv2", (activation("BTD"), weight("Dke"), weight("e")), activation("BTe")),
        )
