"""The largest number that a model computes anywhere, and where: what a format's largest number is held against."""

from __future__ import annotations

import functools
from collections import deque

import torch
from torch import nn


class LargestActivation:
    """While it is entered: the largest |value| that goes into or out of any module, or that q·k has in attention.

    q·k is taken before it is scaled, as a kernel may compute it: its fp16 product is then what overflows. Inputs are
    looked at too, for a product of two modules' outputs (gate · up) is no module's output.
    """

    def __init__(self, model: nn.Module):
        self.value, self.where = 0.0, ""
        self._model = model
        self._recent: deque[torch.Tensor] = deque(maxlen=4)  # one module's output is the next ones' input

    def __enter__(self) -> LargestActivation:
        self._handles, self._kernels = [], []
        for name, module in self._model.named_modules():
            hook = functools.partial(self._see_module, name or "model")
            self._handles.append(module.register_forward_hook(hook))
            if hasattr(getattr(module, "kernels", None), "attend"):
                self._kernels.append((module, module.kernels))
                module.kernels = self._watched(module.kernels, f"{name} (q·k)")
        return self

    def __exit__(self, *error) -> None:
        for handle in self._handles:
            handle.remove()
        for module, kernels in self._kernels:
            module.kernels = kernels
        self._recent.clear()

    def _watched(self, kernels: type, where: str) -> type:
        """The same kernels, with their scores looked at."""

        def attend(q_BNTH, k_BKSH, v_BKSU, *rest, **named):
            keys = k_BKSH.shape[1]
            rows_BKtH = q_BNTH.unflatten(1, (keys, q_BNTH.shape[1] // keys)).flatten(2, 3)
            self._see(where, rows_BKtH @ k_BKSH.transpose(-2, -1))
            return kernels.attend(q_BNTH, k_BKSH, v_BKSU, *rest, **named)

        return type("Watched", (kernels,), {"attend": staticmethod(attend)})

    def _see_module(self, name: str, module, inputs, output) -> None:
        for tensors, where in ((inputs, f"{name} (input)"), (output, name)):
            for tensor in tensors if isinstance(tensors, tuple) else (tensors,):
                if isinstance(tensor, torch.Tensor) and tensor.is_floating_point() and tensor.numel():
                    self._see(where, tensor)

    def _see(self, where: str, tensor: torch.Tensor) -> None:
        if any(tensor is one for one in self._recent):
            return
        self._recent.append(tensor)
        least, most = map(float, tensor.aminmax())
        largest = max(-least, most) if least == least else float("inf")  # NaN: something overflowed before it
        if largest > self.value:
            self.value, self.where = largest, where
