"""What comes before the first block and after the last one, beside the token embedding and the head's matrix."""

from __future__ import annotations

from dataclasses import dataclass

from archcalc.checks import positive
from archcalc.ops import Op, activation, linear, weight
from archcalc.parts.norm import Norm, norm_op


@dataclass(frozen=True)
class Embedding:
    """Extras of the embedding.

    Args:
        embedding_size: width of the embedding where it is not hidden_size; a projection follows (and, into the head,
            one back). `projection_bias`: of those two.
        type_vocab_size: rows of a table of token types that is added; 0 for none.
        position_offset: rows of a learned position table beyond max_position_embeddings.
        norm: of the sum.
    """

    embedding_size: int | None = None
    projection_bias: bool = False
    type_vocab_size: int = 0
    position_offset: int = 0
    norm: Norm | None = None

    def __post_init__(self):
        if self.embedding_size is not None:
            positive(embedding_size=self.embedding_size)
        if self.type_vocab_size:
            positive(type_vocab_size=self.type_vocab_size)
        if self.position_offset:
            positive(position_offset=self.position_offset)


@dataclass(frozen=True)
class Head:
    """What makes the output of a stack's last hidden states.

    Args:
        kind: `lm` makes logits over the vocabulary; `mlm` transforms first (a matrix, an activation and `norm`);
            `pooler` is one matrix over the first token; `none` ends at the hidden states.
        bias: of the logits. logit_softcap: logits become cap·tanh(logits/cap).
    """

    kind: str = "lm"
    bias: bool = False
    norm: Norm | None = None
    logit_softcap: float | None = None

    @property
    def has_logits(self) -> bool:
        return self.kind in ("lm", "mlm")


@dataclass(frozen=True)
class ConvFrontend:
    """Whisper's input: two convolutions of width `kernel` over spectrogram frames, the second with stride 2.

    Source: Radford et al. 2022, arXiv:2212.04356, section 2.2.
    """

    num_mel_bins: int
    kernel: int = 3

    def __post_init__(self):
        positive(num_mel_bins=self.num_mel_bins, kernel=self.kernel)

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


def transform_ops(norm: Norm) -> tuple[Op, ...]:
    """The matrix, activation and norm in front of a masked language model's head."""
    return linear("head.dense", "BRD", "De", "BRe", True), norm_op(norm, "head.norm", "BRe", "e")
