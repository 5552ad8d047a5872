"""Whole models: a decoder that continues a sequence, an encoder that reads one, an encoder with a decoder."""

from __future__ import annotations

import torch
from torch import nn

from archcalc import config as parts
from archcalc.config import ModelConfig
from models.cache import Cache, CrossCache
from models.feed_forward import ACTIVATIONS
from models.kernels import Eager
from models.norm import norm_from_config
from models.stack import Stack


def _add_head(model: nn.Module, config: ModelConfig, kernels) -> None:
    """Register the logits' matrix `lm_head`, what comes before it (`transform`, BERT), or a `pooler`."""
    head, width = config.head, config.hidden_size
    if head.kind == "pooler":
        model.pooler = nn.Linear(width, width)
    if head.kind == "mlm":
        owned = {"dense": nn.Linear(width, width, bias=head.dense_bias)}
        owned |= {"norm": norm_from_config(head.norm, width, kernels)} if head.norm else {}
        model.transform = nn.ModuleDict(owned)
    if head.has_logits:
        model.lm_head = nn.Linear(width, config.vocab_size, bias=head.bias)
        if head.buffer_bias:
            del model.lm_head.bias
            model.lm_head.register_buffer("bias", torch.zeros(config.vocab_size))


def _head(model: nn.Module, x_BTD: torch.Tensor) -> torch.Tensor:
    """What the model's head makes of normed hidden states: logits [B, T, V], a pooled vector [B, D], or themselves."""
    head = model.config.head
    if head.kind == "pooler":
        return torch.tanh(model.pooler(x_BTD[:, 0]))
    if head.kind == "mlm":
        x_BTD = ACTIVATIONS[model.config.encoder.layers[-1].mlp.hidden_act](model.transform["dense"](x_BTD))
        x_BTD = model.transform["norm"](x_BTD) if head.norm else x_BTD
    if not head.has_logits:
        return x_BTD
    logits_BTV = model.lm_head(x_BTD if head.scale == 1 else x_BTD * head.scale)
    return logits_BTV if not head.logit_softcap else head.logit_softcap * torch.tanh(logits_BTV / head.logit_softcap)


class _OneStack(Stack):
    """stem (embedding) -> layers -> head (final norm and logits); each of the three can be traced alone."""

    def __init__(self, config: ModelConfig, stack: parts.Stack, kernels):
        super().__init__(config, stack, kernels)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        _add_head(self, config, kernels)
        self.tie()

    def tie(self) -> None:
        """Make the head's matrix the embedding's, where the config says so."""
        if self.config.tie_word_embeddings and self.config.head.has_logits:
            self.lm_head.weight = self.embed_tokens.weight

    def stem(self, input_ids_BT: torch.Tensor, position_ids_BT: torch.Tensor, type_ids_BT=None) -> torch.Tensor:
        """Token, position and type vectors, [B, T, D]."""
        return self.embed(self.embed_tokens(input_ids_BT), position_ids_BT, type_ids_BT)

    def head(self, x_BTD: torch.Tensor) -> torch.Tensor:
        """Logits [B, T, V] of the last block's output."""
        return _head(self, x_BTD if self.norm is None else self.norm(x_BTD))


class DecoderOnly(_OneStack):
    """GPT, Llama, Mamba and their kin: one causal stack that continues a sequence; V·D parameters and the stack's."""

    def __init__(self, config: ModelConfig, kernels=Eager):
        super().__init__(config, config.decoder, kernels)

    def trunk(self, input_ids_BT, position_ids_BT=None, cache: Cache | None = None) -> torch.Tensor:
        """Stem and blocks, without the head, [B, T, D]; arguments as `forward`."""
        position_ids_BT = self.positions(input_ids_BT, position_ids_BT, cache)
        return self.run(self.stem(input_ids_BT, position_ids_BT.clamp(min=0)), position_ids_BT, cache)

    def forward(
        self, input_ids_BT: torch.Tensor, position_ids_BT: torch.Tensor | None = None, cache: Cache | None = None
    ) -> torch.Tensor:
        """Logits [B, T, V].

        Args:
            position_ids_BT: consecutive in each row, below 0 for padding in front (see `left_padded`); None for those
                after the cache's (from 0 without a cache).
            cache: the past; this pass is added to it. None: the sequence is whole.
        """
        return self.head(self.trunk(input_ids_BT, position_ids_BT, cache))


class EncoderOnly(_OneStack):
    """BERT and its kin: one stack in which every token sees every other; V·D parameters and the stack's."""

    def __init__(self, config: ModelConfig, kernels=Eager):
        super().__init__(config, config.encoder, kernels)

    def forward(self, input_ids_BT: torch.Tensor, present_BT=None, type_ids_BT=None) -> torch.Tensor:
        """Logits [B, T, V], a pooled vector [B, D] or hidden states [B, T, D], as the config's head says.

        Args:
            present_BT: False where a token is padding, in front or behind; None where there is none.
            type_ids_BT: None for all 0.
        """
        present_BT = torch.ones_like(input_ids_BT, dtype=torch.bool) if present_BT is None else present_BT
        position_ids_BT = self.positions(input_ids_BT, counted_positions(present_BT))
        x_BTD = self.stem(input_ids_BT, position_ids_BT, type_ids_BT)
        x_BTD = self.run(x_BTD, position_ids_BT, present_BT=present_BT)
        if self.config.head.kind == "pooler":  # it reads the first token that is no padding
            x_BTD = x_BTD[torch.arange(len(x_BTD)), present_BT.long().argmax(-1), None]
        return self.head(x_BTD)


class EncoderDecoder(nn.Module):
    """`encode` once a source, `decode` once a target token; V·D parameters and those of both stacks.

    Source: Vaswani et al. 2017, arXiv:1706.03762.
    """

    def __init__(self, config: ModelConfig, kernels=Eager):
        super().__init__()
        self.config = config
        self.encoder = Stack(config, config.encoder, kernels)
        self.decoder = Stack(config, config.decoder, kernels)
        stacks = (self.decoder,) if config.frontend else (self.encoder, self.decoder)
        for owner in (self,) if config.share_embeddings and not config.frontend else stacks:
            owner.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        _add_head(self, config, kernels)
        self.tie()

    def tie(self) -> None:
        """Make the head's matrix the decoder's embedding, where the config says so."""
        if self.config.tie_word_embeddings:
            self.lm_head.weight = self._embedding(self.decoder).weight

    def _embedding(self, stack: Stack) -> nn.Embedding:
        return self.embed_tokens if hasattr(self, "embed_tokens") else stack.embed_tokens

    def stem(self, stack: Stack, ids_BT: torch.Tensor, position_ids_BT: torch.Tensor) -> torch.Tensor:
        """Token and position vectors of the encoder's or the decoder's input, [B, T, D]."""
        return stack.embed(self._embedding(stack)(ids_BT), position_ids_BT)

    def head(self, x_BTD: torch.Tensor) -> torch.Tensor:
        """Logits [B, T, V] of the decoder's last block's output."""
        return _head(self, x_BTD if self.decoder.norm is None else self.decoder.norm(x_BTD))

    def encode(self, source_BX: torch.Tensor, source_mask_BX: torch.Tensor | None = None) -> CrossCache:
        """Run the encoder, and every decoder layer's cross keys and values: all that decoding needs of a source.

        Args:
            source_BX: token ids; of a model that listens, frames [B, 2·X, bins].
            source_mask_BX: False where a token is padding, in front or behind; None where there is none.
        """
        stack, listens = self.encoder, self.config.frontend
        x_BXD = stack.listen(source_BX) if listens else self._embedding(stack)(source_BX)
        if source_mask_BX is None:
            source_mask_BX = torch.ones(x_BXD.shape[:2], dtype=torch.bool, device=x_BXD.device)
        position_ids_BX = stack.positions(x_BXD, counted_positions(source_mask_BX))
        x_BXD = stack.run(stack.embed(x_BXD, position_ids_BX), position_ids_BX, present_BT=source_mask_BX)
        return self.cross_cache(x_BXD if stack.norm is None else stack.norm(x_BXD), source_mask_BX)

    def cross_cache(self, states_BXD: torch.Tensor, source_mask_BX: torch.Tensor) -> CrossCache:
        """What decoding needs of the encoder's last, normed states."""
        return CrossCache([layer.cross_attn.keys_values(states_BXD) for layer in self.decoder.layers], source_mask_BX)

    def decode(
        self,
        target_ids_BT: torch.Tensor,
        cross: CrossCache,
        cache: Cache | None = None,
        position_ids_BT: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Logits [B, T, V] of target tokens; `cache` and `position_ids_BT` as in `DecoderOnly.forward`."""
        return self.head(self.trunk(target_ids_BT, cross, cache, position_ids_BT))

    def trunk(self, target_ids_BT, cross: CrossCache, cache: Cache | None = None, position_ids_BT=None) -> torch.Tensor:
        """The decoder without the head, [B, T, D]; arguments as `decode`."""
        position_ids_BT = self.decoder.positions(target_ids_BT, position_ids_BT, cache)
        x_BTD = self.stem(self.decoder, target_ids_BT, position_ids_BT.clamp(min=0))
        return self.decoder.run(x_BTD, position_ids_BT, cache, cross=cross)

    def forward(
        self, source_BX: torch.Tensor, target_ids_BT: torch.Tensor, source_mask_BX: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Logits [B, T, V] of a whole target at once, each token seeing the true tokens before it."""
        return self.decode(target_ids_BT, self.encode(source_BX, source_mask_BX))


def counted_positions(present_BT: torch.Tensor) -> torch.Tensor:
    """Each token's position among those that are no padding."""
    return (present_BT.long().cumsum(-1) - 1).clamp(min=0)


def left_padded(prompts: list[list[int]], pad: int = 0, device="cpu") -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids [B, T] of unequal prompts, padded in front, and their positions [B, T], below 0 for padding."""
    longest = max(map(len, prompts))
    ids_BT = torch.tensor([[pad] * (longest - len(prompt)) + prompt for prompt in prompts], device=device)
    lengths_B1 = torch.tensor([[len(prompt)] for prompt in prompts], device=device)
    return ids_BT, torch.arange(longest, device=device) + lengths_B1 - longest
