"""GPT, Llama and their kin: one causal stack that continues a sequence."""

from __future__ import annotations

import torch
from torch import nn

from archcalc.config import ModelConfig
from models.cache import KVCache
from models.kernels import Eager
from models.stack import Stack


class DecoderOnly(Stack):
    """stem (embedding) -> layers -> head (final norm and logits); each of the three can be traced alone."""

    def __init__(self, config: ModelConfig, kernels=Eager):
        super().__init__(config, config.decoder, kernels)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.tie()

    def tie(self) -> None:
        """Make the head's matrix the embedding's, where the config says so."""
        if self.config.tie_word_embeddings:
            self.lm_head.weight = self.embed_tokens.weight

    def stem(self, input_ids_BT: torch.Tensor, position_ids_BT: torch.Tensor) -> torch.Tensor:
        """Token and position vectors, [B, T, D]."""
        return self.embed(self.embed_tokens, input_ids_BT, position_ids_BT)

    def head(self, x_BTD: torch.Tensor) -> torch.Tensor:
        """Logits [B, T, V] of the last block's output."""
        return self.lm_head(x_BTD if self.norm is None else self.norm(x_BTD))

    def trunk(self, input_ids_BT, position_ids_BT=None, cache: KVCache | None = None) -> torch.Tensor:
        """Stem and blocks, without the head, [B, T, D]; arguments as `forward`."""
        position_ids_BT = self.positions(input_ids_BT, position_ids_BT, cache)
        return self.run(self.stem(input_ids_BT, position_ids_BT), position_ids_BT, cache)

    def forward(
        self, input_ids_BT: torch.Tensor, position_ids_BT: torch.Tensor | None = None, cache: KVCache | None = None
    ) -> torch.Tensor:
        """Logits [B, T, V].

        Args:
            position_ids_BT: consecutive in each row; None for those after the cache's (from 0 without a cache).
            cache: the past; this pass's keys and values are written into it. None: the sequence is whole.
        """
        return self.head(self.trunk(input_ids_BT, position_ids_BT, cache))
