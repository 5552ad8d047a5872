"""How far an engine's numbers may be from fp32, and how the distance is measured."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Tolerance:
    """By default an error is |got - want| relative to the largest |want| of the array, and `limit` is `relative`.

    With atol or rtol (the other is 0 then) each element has its own bound, |got - want| <= atol + rtol·|want|, as in
    NumPy and Polygraphy; an error is then a share of that bound, and `limit` is 1.
    """

    relative: float
    atol: float | None = None
    rtol: float | None = None

    @property
    def is_default(self) -> bool:
        return self.atol is None and self.rtol is None

    @property
    def limit(self) -> float:
        return self.relative if self.is_default else 1.0

    def __str__(self) -> str:
        if self.is_default:
            return f"|got - want| <= {self.relative:g}·max|want|"
        return f"|got - want| <= {self.atol or 0:g} + {self.rtol or 0:g}·|want| (atol, rtol)"

    def allowed(self, want: np.ndarray, scale: float) -> np.ndarray:
        """The largest |got - want| of each element; `scale` is the largest |want| of the whole array."""
        if self.is_default:
            return np.full_like(want, self.relative * scale, dtype=np.float64)
        return (self.atol or 0.0) + (self.rtol or 0.0) * np.abs(want.astype(np.float64))

    def errors(self, got: np.ndarray, want: np.ndarray) -> np.ndarray:
        """The error of each element, to be held against `limit`; infinite where either is not finite."""
        finite = np.isfinite(got) & np.isfinite(want)
        distance = np.abs(np.where(finite, got, 0) - np.where(finite, want, 0))
        unit = np.abs(np.where(finite, want, 0)).max(initial=0.0) if self.is_default else self.allowed(want, 0.0)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            errors = np.where(distance == 0, 0.0, distance / unit)
        return np.where(finite, errors, np.inf)
