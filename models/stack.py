"""A stack of blocks with its positions and final norm: all of a decoder-only model but embedding and head."""

from __future__ import annotations

import torch
from torch import nn

from archcalc import config
from archcalc.errors import ArchcalcError
from models.block import Block, norm_from_config
from models.cache import CrossCache, KVCache
from models.positions import causal_mask, padding_mask, rotary_tables, sinusoids


class Stack(nn.Module):
    """`embed_positions` where learned, `layers`, `norm` where there is a final one."""

    def __init__(self, model: config.ModelConfig, stack: config.Stack, kernels):
        super().__init__()
        self.config = model
        self._tables: dict = {}  # computed when first needed, in fp32 whatever the model is cast to
        learned = model.position_embedding == "learned"
        self.embed_positions = nn.Embedding(model.max_position_embeddings, model.hidden_size) if learned else None
        self.layers = nn.ModuleList(Block(block, model.hidden_size, kernels) for block in stack.layers)
        self.norm = norm_from_config(stack.final_norm, model.hidden_size, kernels) if stack.final_norm else None

    def embed(self, embed_tokens: nn.Embedding, ids_BT: torch.Tensor, position_ids_BT: torch.Tensor) -> torch.Tensor:
        """Token vectors, scaled where the config says so, plus position vectors: [B, T, D]."""
        x_BTD = embed_tokens(ids_BT)
        if self.config.scale_embedding:
            x_BTD = x_BTD * self.config.hidden_size**0.5
        if self.embed_positions is not None:
            x_BTD = x_BTD + self.embed_positions(position_ids_BT)
        if self.config.position_embedding == "sinusoidal":
            x_BTD = x_BTD + sinusoids(position_ids_BT, self.config.hidden_size).to(x_BTD.dtype)
        return x_BTD

    def rotary(self, attention: config.Attention, device) -> tuple[torch.Tensor, torch.Tensor] | tuple[None, None]:
        """cos and sin tables [M, H/2] of an attention, made once; (None, None) where it has no rotary."""
        if attention.rotary is None:
            return None, None
        key = (attention.rotary, attention.head_dim, torch.device(device))
        if key not in self._tables:
            length = self.config.max_position_embeddings
            self._tables[key] = rotary_tables(attention.rotary, attention.head_dim, length, device)
        return self._tables[key]

    def run(
        self,
        x_BTD: torch.Tensor,
        position_ids_BT: torch.Tensor,
        cache: KVCache | None = None,
        present_BT: torch.Tensor | None = None,
        cross: CrossCache | None = None,
    ) -> torch.Tensor:
        """The blocks, without the final norm: [B, T, D]. `present_BT` marks no padding where not causal."""
        masks = self._masks(position_ids_BT, cache, present_BT)
        cross_mask_B1TX = padding_mask(cross.source_mask_BX, x_BTD.shape[1]) if cross else None
        # One row's tokens are consecutive, so the first position says where all of them go.
        write_indices_B = position_ids_BT[:, 0] if cache else None
        for index, layer in enumerate(self.layers):
            attention = layer.self_attn.config
            past = cache.layers[index] if cache else (None, None)
            tables = self.rotary(attention, x_BTD.device)
            source = (*cross.layers[index], cross_mask_B1TX) if cross else ()
            mask_B1TS = masks[attention.causal, attention.sliding_window]
            x_BTD, *pair = layer(x_BTD, *past, *tables, position_ids_BT, write_indices_B, mask_B1TS, *source)
            if cache:
                cache.layers[index] = tuple(pair)
        return x_BTD

    def _masks(self, position_ids_BT, cache: KVCache | None, present_BT) -> dict:
        """One mask [B, 1, T, S] for each distinct (causal, sliding window)."""
        slots_BS = position_ids_BT
        if cache:
            slots_BS = torch.arange(cache.capacity, device=position_ids_BT.device)[None]
        if present_BT is None:
            present_BT = torch.ones_like(position_ids_BT, dtype=torch.bool)
        kinds = {(layer.self_attn.config.causal, layer.self_attn.config.sliding_window) for layer in self.layers}
        return {
            (causal, window): causal_mask(position_ids_BT, slots_BS, window)
            if causal
            else padding_mask(present_BT, position_ids_BT.shape[1])
            for causal, window in kinds
        }

    def positions(self, ids_BT: torch.Tensor, position_ids_BT=None, cache: KVCache | None = None) -> torch.Tensor:
        """The given positions or the next ones, [B, T], reserved in the cache. Raises: ArchcalcError if too many."""
        batch, tokens = ids_BT.shape
        limit = self.config.max_position_embeddings
        if tokens > limit:
            raise ArchcalcError(f"{tokens} tokens: more than max_position_embeddings={limit}; give fewer")
        given = position_ids_BT
        if position_ids_BT is None:
            position_ids_BT = (cache or KVCache([], limit)).positions(batch, tokens, ids_BT.device)
        if cache:
            cache.reserve(given, tokens)
        return position_ids_BT
