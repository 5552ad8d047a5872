"""The five operations that an exporter replaces by one graph operator each, in plain PyTorch.

Everything else in the models is `torch.nn`. A class with the same five methods takes the place of `Eager`.
Tensor suffixes are axis letters: see `archcalc.dims.AXES`; C is a cache's capacity in tokens, P pairs that are turned.
"""

from __future__ import annotations

from collections.abc import Callable

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
        return (normal.to(weight.dtype) * weight).to(x.dtype)

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
        q_BNTH: torch.Tensor,
        k_BKSH: torch.Tensor,
        v_BKSU: torch.Tensor,
        mask_B1TS: torch.Tensor,
        scale: float | None = None,
        softcap: float | None = None,
        bias_BNTS: torch.Tensor | None = None,
        sinks_N: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """softmax(q·k * scale)·v over the keys where the mask is True, as [B, N, T, U].

        2·B·N·T·S·H and 2·B·N·T·S·U FLOPs. Every query must see a key.
        Args:
            scale: None for 1 / sqrt(H). softcap: scores become cap·tanh(score / cap). bias_BNTS: added to them.
            sinks_N: a score that each head's softmax has beside those of the keys, and that has no value.
        Source: arXiv:1706.03762; grouped queries arXiv:2305.13245; softcap arXiv:2408.00118; sinks arXiv:2508.10925.
        """
        # Query head n uses key head n // G: the G heads of a group are more rows of one product, and no key is copied.
        keys, heads = k_BKSH.shape[1], q_BNTH.shape[1]
        scale = q_BNTH.shape[-1] ** -0.5 if scale is None else scale
        rows_BKtH = q_BNTH.unflatten(1, (keys, heads // keys)).flatten(2, 3)
        scores_BKtS = rows_BKtH @ k_BKSH.transpose(-2, -1) * scale
        scores_BNTS = scores_BKtS.unflatten(2, (heads // keys, -1)).flatten(1, 2)
        if softcap is not None:
            scores_BNTS = softcap * torch.tanh(scores_BNTS / softcap)
        if bias_BNTS is not None:
            scores_BNTS = scores_BNTS + bias_BNTS
        scores_BNTS = scores_BNTS.masked_fill(~mask_B1TS, float("-inf"))
        if sinks_N is not None:
            sinks_BNT1 = sinks_N[None, :, None, None].expand(*scores_BNTS.shape[:-1], 1)
            scores_BNTS = torch.cat((scores_BNTS, sinks_BNT1.to(scores_BNTS.dtype)), dim=-1)
        weights_BNTS = scores_BNTS.softmax(dim=-1, dtype=torch.float32)[..., : k_BKSH.shape[2]].to(v_BKSU.dtype)
        rows_BKtS = weights_BNTS.unflatten(1, (keys, heads // keys)).flatten(2, 3)
        return (rows_BKtS @ v_BKSU).unflatten(2, (heads // keys, -1)).flatten(1, 2)

    @staticmethod
    def scan(step: Callable, state: torch.Tensor, inputs_BT: tuple) -> tuple[torch.Tensor, torch.Tensor]:
        """(the last state, what `step` made of each token [B, T, ...]). A recurrence: one step a token.

        Args:
            step: (state, one token's slice of each input) to (new state, what is read). Source: ONNX Scan.
        """
        read = []
        for t in range(inputs_BT[0].shape[1]):
            state, read_B = step(state, *(one_BT[:, t] for one_BT in inputs_BT))
            read.append(read_B)
        return state, torch.stack(read, dim=1)
