"""A stack of blocks with what feeds it and its final norm."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from archcalc import config
from archcalc.errors import ArchcalcError
from models.block import Block
from models.cache import Cache, CrossCache
from models.norm import norm_from_config
from models.positions import Context, alibi, causal_mask, distance_buckets, padding_mask, rotary_tables, sinusoids


class Stack(nn.Module):
    """`embed_positions`, `embed_types`, `embed_norm` where there are such, `layers`, `norm` where there is a final one.

    Learned positions have (M + offset)·D parameters, types t·D, a norm D; the layers have the rest.
    """

    def __init__(self, model: config.ModelConfig, stack: config.Stack, kernels):
        super().__init__()
        extra, width = model.embedding, model.hidden_size
        is_encoder = stack is model.encoder
        self.config, self.stack = model, stack
        self.limit = (is_encoder and model.max_source_positions) or model.max_position_embeddings
        self._tables: dict = {}  # computed when first needed, in fp32 whatever the model is cast to
        rows = self.limit + extra.position_offset
        stored = model.position_embedding == "learned" or extra.stored_sinusoids
        self.embed_positions = nn.Embedding(rows, width) if stored else None
        self.embed_types = nn.Embedding(extra.type_vocab_size, width) if extra.type_vocab_size else None
        self.embed_norm = norm_from_config(extra.norm, width, kernels) if extra.norm else None
        if is_encoder and model.frontend:
            bins, taps = model.frontend.num_mel_bins, model.frontend.kernel
            self.conv1 = nn.Conv1d(bins, width, taps, padding=taps // 2)
            self.conv2 = nn.Conv1d(width, width, taps, stride=2, padding=taps // 2)
        self.layers = nn.ModuleList(Block(block, width, kernels) for block in stack.layers)
        self.norm = norm_from_config(stack.final_norm, width, kernels) if stack.final_norm else None

    def listen(self, frames_BFz: torch.Tensor) -> torch.Tensor:
        """Vectors [B, F / 2, D] of F spectrogram frames. Source: Radford et al. 2022, arXiv:2212.04356."""
        return F.gelu(self.conv2(F.gelu(self.conv1(frames_BFz.transpose(1, 2))))).transpose(1, 2)

    def embed(self, x_BTD: torch.Tensor, position_ids_BT: torch.Tensor, type_ids_BT=None) -> torch.Tensor:
        """Token vectors, scaled where the config says so, plus what positions (0 and up) and types add: [B, T, D]."""
        extra = self.config.embedding
        if self.config.scale_embedding:
            # As a number of the vectors' type: Gemma in bf16 multiplies by a rounded root.
            x_BTD = x_BTD * torch.tensor(self.config.hidden_size**0.5, dtype=x_BTD.dtype, device=x_BTD.device)
        if self.embed_positions is not None:
            x_BTD = x_BTD + self.embed_positions(position_ids_BT + extra.position_offset)
        elif self.config.position_embedding == "sinusoidal":
            waves_BTD = sinusoids(position_ids_BT, self.config.hidden_size, extra.sinusoid_halves)
            x_BTD = x_BTD + waves_BTD.to(x_BTD.dtype)
        if self.embed_types is not None:
            x_BTD = x_BTD + self.embed_types(torch.zeros_like(position_ids_BT) if type_ids_BT is None else type_ids_BT)
        return x_BTD if self.embed_norm is None else self.embed_norm(x_BTD)

    def rotary(self, mixer: config.Mixer, tokens: int, device) -> tuple[torch.Tensor, torch.Tensor] | tuple[None, None]:
        """cos and sin tables [M, P] of a mixer, of at least so many tokens; (None, None) where it has no rotary."""
        rotary = getattr(mixer, "rotary", None)
        if rotary is None:
            return None, None
        # As long as is needed and not as the config says, which may be anything; doubled, so that few are made.
        length, short = min(1 << (tokens - 1).bit_length(), self.limit), rotary.short_context
        length = min(length, short) if short and tokens <= short else length
        head_dim = getattr(mixer, "head_dim", None) or mixer.qk_rope_head_dim
        key = (rotary, head_dim, length, torch.device(device))
        if key not in self._tables:
            self._tables[key] = rotary_tables(rotary, head_dim, length, device)
        return self._tables[key]

    def run(
        self,
        x_BTD: torch.Tensor,
        position_ids_BT: torch.Tensor,
        cache: Cache | None = None,
        present_BT: torch.Tensor | None = None,
        cross: CrossCache | None = None,
    ) -> torch.Tensor:
        """The blocks, without the final norm: [B, T, D].

        Args:
            present_BT: False where a token is padding, in a stack that is not causal; in a causal one positions
                below 0 say it.
        """
        contexts: dict = {}
        values: list[torch.Tensor] = []
        outputs: dict[int, torch.Tensor] = {}
        if present_BT is None:
            present_BT = position_ids_BT >= 0
        cross_mask_B1TX = padding_mask(cross.source_mask_BX, x_BTD.shape[1]) if cross else None
        for index, layer in enumerate(self.layers):
            mixer = layer.config.self_attn
            key = mixer, index if getattr(mixer, "relative_buckets", None) else None  # a table of its own
            if key not in contexts:
                contexts[key] = self._context(layer, position_ids_BT, cache, present_BT, contexts)
            source = (*cross.layers[index], cross_mask_B1TX) if cross else (None,) * 3
            names = ("cross_k_BKXH", "cross_v_BKXH", "cross_mask_B1TX")
            context = contexts[key]._replace(first_values=values, **dict(zip(names, source, strict=True)))
            if layer.skip is not None:  # of the layer that mirrors it: arXiv:2209.12152
                x_BTD = x_BTD + layer.skip.weight * outputs[len(self.layers) - 1 - index]
            x_BTD = layer(x_BTD, context, cache.layers[index] if cache else None)
            if self.layers[-1 - index].skip is not None:
                outputs[index] = x_BTD
        return x_BTD

    def _context(self, layer: Block, position_ids_BT, cache: Cache | None, present_BT, others: dict) -> Context:
        """What all layers with this mixer see beside their input."""
        mixer, tokens, real_BT = layer.config.self_attn, position_ids_BT.shape[1], position_ids_BT.clamp(min=0)
        if mixer is None or mixer.module != "self_attn":
            return Context(real_BT, present_BT=present_BT)
        keys_BS = cache.key_positions(tokens, mixer.sliding_window) if cache else position_ids_BT
        if mixer.causal:
            chunk = getattr(mixer, "attention_chunk_size", None)
            mask_B1TS = causal_mask(position_ids_BT, keys_BS, mixer.sliding_window, chunk, padded=True)
        else:
            mask_B1TS = padding_mask(present_BT, tokens)
        reach = (cache.capacity or cache.length) if cache else _reach(position_ids_BT)
        short = getattr(mixer, "rotary", None) and mixer.rotary.short_context
        if short and cache and not cache.capacity and reach > short >= reach - tokens > 0:
            raise ArchcalcError(f"{reach} tokens: earlier keys were turned for at most {short}; make the cache static")
        tables = self.rotary(mixer, reach, position_ids_BT.device)
        bias_BNTS = self._bias(layer, keys_BS[:, None, :] - position_ids_BT[:, :, None], others)
        return Context(real_BT, mask_B1TS, *tables, bias_BNTS, present_BT)

    def _bias(self, layer: Block, ahead_BTS: torch.Tensor, others: dict) -> torch.Tensor | None:
        """What is added to the scores by distance, [B, N, T, S]; the first layer's table serves those without one."""
        mixer = layer.config.self_attn
        if getattr(mixer, "alibi", False):
            return mixer.alibi_scale * alibi(ahead_BTS, mixer.num_attention_heads)
        buckets = getattr(mixer, "relative_buckets", None)
        if not buckets:
            return None if buckets is None else next(iter(others.values())).bias_BNTS
        found_BTS = distance_buckets(ahead_BTS, buckets, mixer.relative_max_distance, mixer.causal)
        return layer.self_attn.relative_attention_bias(found_BTS).permute(0, 3, 1, 2)

    def positions(self, ids_BT: torch.Tensor, position_ids_BT=None, cache: Cache | None = None) -> torch.Tensor:
        """The given positions or the next ones, [B, T], reserved in the cache. Raises: ArchcalcError if too many."""
        batch, tokens = ids_BT.shape[:2]
        if cache:
            position_ids_BT = cache.advance(position_ids_BT, batch, tokens, ids_BT.device)
        elif position_ids_BT is None:
            position_ids_BT = torch.arange(tokens, device=ids_BT.device).expand(batch, tokens)
        if (reach := max(tokens, _reach(position_ids_BT))) > self.limit:
            raise ArchcalcError(f"{reach} tokens: more than max_position_embeddings={self.limit}; give fewer")
        return position_ids_BT


def _reach(position_ids_BT: torch.Tensor) -> int:
    """How many positions there are up to the last one; of a meta tensor, which has no values, how many tokens."""
    return position_ids_BT.shape[1] if position_ids_BT.is_meta else max(int(position_ids_BT.max()) + 1, 1)
