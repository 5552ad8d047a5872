"""`export verify`: an engine against PyTorch in fp32, logits and cache, prefill and decode.

ONNX Runtime on a CPU computes fp16 norms in fp32 and so hides an overflow that a GPU would have. So the largest
activation of the fp32 model is also held against the largest number of the export's format.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch

from export.build import Build
from models import DecoderOnly
from models.cache import Cache
from models.progress import progress

STEPS = 10
PROMPTS = {1: (12,), 3: (12, 5, 9)}  # batch: prompt lengths


@dataclass
class Verdict:
    """What was compared. Errors are relative to the largest |value| of fp32; `passed` is the conclusion."""

    tolerance: float
    reason: str
    worst_logits: float = 0.0
    worst_cache: float = 0.0
    largest_activation: float = 0.0
    largest_allowed: float = 0.0
    tokens: int = 0
    tokens_agreed: int = 0
    worst_at: str = ""
    problems: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return not self.problems


def _relative(got: np.ndarray, want: np.ndarray) -> float:
    """Largest |got - want| over largest |want|; infinite where anything is not finite."""
    if not np.isfinite(got).all():
        return float("inf")
    return float(np.abs(got - want).max() / max(np.abs(want).max(), 1e-30))


class _LargestActivation:
    """Forward hooks that keep the largest |output| of any module."""

    def __init__(self, model: torch.nn.Module):
        self.value = 0.0
        self._handles = [module.register_forward_hook(self._see) for module in model.modules()]

    def _see(self, module, inputs, output):
        for tensor in output if isinstance(output, tuple) else (output,):
            if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
                self.value = max(self.value, float(tensor.abs().max()))

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()


def verify(build: Build, engine, model: DecoderOnly, steps: int = STEPS) -> Verdict:
    """Compare prefill and `steps` decode steps, batch 1 and batch 3 with unequal prompts.

    Args:
        engine: any of `export.runtimes`. model: the reference in fp32 with the build's weights.
    """
    kind = build.precision
    verdict = Verdict(kind.tolerance, kind.reason, largest_allowed=kind.largest)
    hooks = _LargestActivation(model)
    try:
        for lengths in progress(PROMPTS.values(), "verify"):
            _compare(build, engine, model, lengths, steps, verdict)
    finally:
        hooks.remove()
    verdict.largest_activation = hooks.value
    if not hooks.value <= kind.largest:
        verdict.problems.append(f"an activation reaches {hooks.value:.4g}; {kind.name} ends at {kind.largest:.4g}")
    for what, worst in (("logits", verdict.worst_logits), ("cache", verdict.worst_cache)):
        if not worst <= kind.tolerance:
            verdict.problems.append(f"{what} differ by {worst:.3g}, more than {kind.tolerance:g} ({verdict.worst_at})")
    return verdict


@torch.no_grad()
def _compare(build: Build, engine, model: DecoderOnly, lengths: tuple[int, ...], steps: int, verdict: Verdict) -> None:
    """One batch: prompts of these lengths, padded on the right, then greedy steps of the reference's tokens."""
    batch, longest = len(lengths), max(lengths)
    rng = np.random.default_rng(batch)
    ids = rng.integers(0, build.config.vocab_size, (batch, longest))
    ends = np.array(lengths)
    cache, theirs = Cache.empty(build.config, batch, engine.capacity), engine.new_cache(batch)
    positions = np.tile(np.arange(longest), (batch, 1))
    rows = np.arange(batch)
    for step in range(steps + 1):
        want = model(torch.from_numpy(ids), torch.from_numpy(positions), cache).numpy()
        every = np.tile(np.arange(ids.shape[1]), (batch, 1))
        got = engine.run(ids, positions, positions[:, 0], every, theirs)
        last = ends - 1 if step == 0 else np.zeros(batch, int)
        seen = every <= last[:, None]  # logits of padding mean nothing
        error = _relative(got[seen], want[seen])
        if not error <= verdict.worst_logits:
            verdict.worst_logits, verdict.worst_at = error, f"batch {batch}, step {step}"
        chosen = want[rows, last].argmax(-1)
        verdict.tokens += batch
        verdict.tokens_agreed += int((got[rows, last].argmax(-1) == chosen).sum())
        ids, positions = chosen[:, None], (ends + step)[:, None]
    filled = np.arange(engine.capacity)[None] < (ends + steps)[:, None]
    ours = (tensor for layer in cache.layers for tensor in layer.tensors)
    for mine, other in zip(ours, engine.cache_arrays(theirs), strict=True):
        kept = mine.numpy().transpose(0, 2, 1, 3)[filled], other.transpose(0, 2, 1, 3)[filled]
        verdict.worst_cache = max(verdict.worst_cache, _relative(kept[1], kept[0]))
