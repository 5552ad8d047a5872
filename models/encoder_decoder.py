"""The model of 2017 and its kin: an encoder reads the source once, a decoder writes the target."""

from __future__ import annotations

import torch
from torch import nn

from archcalc.config import ModelConfig
from models.cache import CrossCache, KVCache
from models.kernels import Eager
from models.stack import Stack


class EncoderDecoder(nn.Module):
    """`encode` once a source, `decode` once a target token. Source: Vaswani et al. 2017, arXiv:1706.03762."""

    def __init__(self, config: ModelConfig, kernels=Eager):
        super().__init__()
        self.config = config
        self.encoder = Stack(config, config.encoder, kernels)
        self.decoder = Stack(config, config.decoder, kernels)
        for owner in (self,) if config.share_embeddings else (self.encoder, self.decoder):
            owner.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.tie()

    def tie(self) -> None:
        """Make the head's matrix the decoder's embedding, where the config says so."""
        if self.config.tie_word_embeddings:
            self.lm_head.weight = self._embedding(self.decoder).weight

    def _embedding(self, stack: Stack) -> nn.Embedding:
        return self.embed_tokens if self.config.share_embeddings else stack.embed_tokens

    def stem(self, stack: Stack, ids_BT: torch.Tensor, position_ids_BT: torch.Tensor) -> torch.Tensor:
        """Token and position vectors of the encoder's or the decoder's input, [B, T, D]."""
        return stack.embed(self._embedding(stack), ids_BT, position_ids_BT)

    def head(self, x_BTD: torch.Tensor) -> torch.Tensor:
        """Logits [B, T, V] of the decoder's last block's output."""
        return self.lm_head(x_BTD if self.decoder.norm is None else self.decoder.norm(x_BTD))

    def encode(self, source_ids_BX: torch.Tensor, source_mask_BX: torch.Tensor | None = None) -> CrossCache:
        """Run the encoder, and every decoder layer's cross keys and values: all that decoding needs of a source.

        Args:
            source_mask_BX: True where a token is no padding; None where there is none.
        """
        position_ids_BX = self.encoder.positions(source_ids_BX)
        if source_mask_BX is None:
            source_mask_BX = torch.ones_like(source_ids_BX, dtype=torch.bool)
        x_BXD = self.stem(self.encoder, source_ids_BX, position_ids_BX)
        x_BXD = self.encoder.run(x_BXD, position_ids_BX, present_BT=source_mask_BX)
        if self.encoder.norm is not None:
            x_BXD = self.encoder.norm(x_BXD)
        return CrossCache([layer.cross_attn.keys_values(x_BXD) for layer in self.decoder.layers], source_mask_BX)

    def decode(
        self,
        target_ids_BT: torch.Tensor,
        cross: CrossCache,
        cache: KVCache | None = None,
        position_ids_BT: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Logits [B, T, V] of target tokens; `cache` and `position_ids_BT` as in `DecoderOnly.forward`."""
        position_ids_BT = self.decoder.positions(target_ids_BT, position_ids_BT, cache)
        x_BTD = self.stem(self.decoder, target_ids_BT, position_ids_BT)
        return self.head(self.decoder.run(x_BTD, position_ids_BT, cache, cross=cross))

    def forward(
        self, source_ids_BX: torch.Tensor, target_ids_BT: torch.Tensor, source_mask_BX: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Logits [B, T, V] of a whole target at once, each token seeing the true tokens before it."""
        return self.decode(target_ids_BT, self.encode(source_ids_BX, source_mask_BX))
