"""What is asked of a model: a batch, its lengths, number formats, a device, and which conventions to count by."""

from __future__ import annotations

from dataclasses import dataclass

from archcalc.memory import Paged


@dataclass(frozen=True)
class Request:
    """What is asked of the model.

    Args:
        batch: sequences at once.
        prompt: input tokens a sequence (encoder-decoder: source tokens); default 1024, or all positions if fewer.
        context: tokens a decode step attends over, its own included; default the prompt.
        precision, kv_precision: number formats of weights and products, and of keys and values
            (default: the format of the activations).
        dense: count every (query, key) pair, also those that the causal mask or a window hides.
        last_logits: prefill makes logits of its last position only.
        latent: form of latent attention in both passes, `absorbed` or `expanded`; None: expanded in the prefill and
            absorbed in the decode, as engines do.
        eager: also what the eager implementation in transformers multiplies, for a FLOP counter beside it.
        macs: multiply-adds in place of FLOPs; a multiply-add is 2 FLOPs.
        paged: the cache that an engine reserves, beside the logical one; None for none.
        explain: a quantity (`archcalc.explain.QUANTITIES`) whose summands are listed.
    """

    batch: int = 1
    prompt: int | None = None
    context: int | None = None
    precision: str = "bf16"
    kv_precision: str | None = None
    device: str = "h100-sxm"
    dense: bool = False
    last_logits: bool = False
    latent: str | None = None
    eager: bool = False
    macs: bool = False
    paged: Paged | None = None
    explain: str | None = None


USUAL = Request()  # what is asked where nothing is said
