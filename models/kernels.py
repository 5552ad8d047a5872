"""The four operations that an exporter replaces by one graph operator each, in plain PyTorch.

Everything else in the models is `torch.nn`. A class with the same four methods takes the place of `Eager`.
Tensor suffixes are axis letters: see `archcalc.dims.AXES`; C is a cache's capacity in tokens, P is head_dim / 2.
"""

from __future__ import annotations

import torch


class Eager:
    """The meaning of each kernel; torch's FLOP counter sees every product in it."""

    @staticmethod
    def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """x / rms(x) * weight over the last axis, the norm in fp32 (fp16 squares overflow at 256).

        Source: Zhang and Sennrich 2019, arXiv:1910.07467.
        """
        wide = x.float()
        normal = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
        return normal.to(x.dtype) * weight

    @staticmethod
    def rotary(
        x_BTNH: torch.Tensor, cos_MP: torch.Tensor, sin_MP: torch.Tensor, position_ids_BT: torch.Tensor
    ) -> torch.Tensor:
        """Turn the pairs (x[i], x[i + H/2]) by their position's angles.

        Source: Su et al. 2021, arXiv:2104.09864, with the halves of a head paired (Llama, NeoX) instead of
        neighbours; ONNX RotaryEmbedding with interleaved=0.
        """
        cos_BT1P = cos_MP[position_ids_BT][:, :, None].to(x_BTNH.dtype)
        sin_BT1P = sin_MP[position_ids_BT][:, :, None].to(x_BTNH.dtype)
        first, second = x_BTNH.chunk(2, dim=-1)
        return torch.cat((first * cos_BT1P - second * sin_BT1P, second * cos_BT1P + first * sin_BT1P), dim=-1)

    @staticmethod
    def cache_write(cache_BKCH: torch.Tensor, new_BKTH: torch.Tensor, write_indices_B: torch.Tensor) -> torch.Tensor:
        """Write row b's T entries at slots write_indices[b] .. + T - 1, in place. Source: ONNX TensorScatter."""
        batch, _, tokens, _ = new_BKTH.shape
        rows_B1 = torch.arange(batch, device=new_BKTH.device)[:, None]
        slots_BT = write_indices_B[:, None] + torch.arange(tokens, device=new_BKTH.device)
        cache_BKCH[rows_B1, :, slots_BT] = new_BKTH.transpose(1, 2).to(cache_BKCH.dtype)
        return cache_BKCH

    @staticmethod
    def attend(
        q_BNTH: torch.Tensor, k_BKSH: torch.Tensor, v_BKSH: torch.Tensor, mask_B1TS: torch.Tensor
    ) -> torch.Tensor:
        """softmax(q·k / sqrt(H))·v over the keys where the mask is True, as [B, N, T, H].

        2·B·N·T·S·H FLOPs a product. Every query must see a key.
        Source: Vaswani et al. 2017, arXiv:1706.03762; grouped queries: Ainslie et al. 2023, arXiv:2305.13245.
        """
        # Query head n uses key head n // G. Axes, not sizes, keep them apart, so a trace stays dynamic in T.
        q_BKGTH = q_BNTH.unflatten(1, (k_BKSH.shape[1], -1))
        scores_BKGTS = q_BKGTH @ k_BKSH[:, :, None].transpose(-2, -1) * q_BNTH.shape[-1] ** -0.5
        scores_BKGTS = scores_BKGTS.masked_fill(~mask_B1TS[:, :, None], float("-inf"))
        weights_BKGTS = scores_BKGTS.softmax(dim=-1, dtype=torch.float32).to(v_BKSH.dtype)
        return (weights_BKGTS @ v_BKSH[:, :, None]).flatten(1, 2)
