"""What the eager PyTorch implementation in transformers multiplies, so that a count of ours can be laid beside a FLOP
counter's (`torch.utils.flop_counter`).

The op list says what a model needs; an implementation may run more: padding, masked products, experts that nobody
chose. Or a counter may see less: a product written element by element counts 0. Each difference is a function below.
"""

from __future__ import annotations

from archcalc.blocks import kinds
from archcalc.config import (
    Attention,
    Block,
    Both,
    GatedDeltaNet,
    GatedLinearRecurrence,
    LatentAttention,
    LightningAttention,
    Mamba,
    Mamba2,
    MixtureOfExperts,
    ModelConfig,
    ShortConvolution,
    expanded,
)
from archcalc.cost import Pass, bound, total
from archcalc.errors import ConfigError

DELTA_CHUNK = 64  # tokens that the gated delta rule takes at once
EVERY_EXPERT = ("llama4_text",)  # model types whose experts multiply every token, of which the router keeps some


def eager_flops(config: ModelConfig, batch: int, tokens: int, context: int, logits: int | None = None) -> int:
    """FLOPs that a counter sees in one forward call.

    Args:
        batch: sequences, B. tokens: of this call, T. context: those and the cached ones before them, S; equal to
            `tokens` in the first call, which also runs the encoder, where there is one, over as many.
        logits: positions that get logits, R; default all tokens.
    Raises:
        ConfigError: a mixer whose eager form is not understood.
    """
    source = config.source_tokens(tokens)
    once, step = bound(expanded(config))
    dims = {"B": batch, "T": tokens, "S": context, "R": tokens if logits is None else logits, "X": source}
    found = total(Pass("", dims, step), dense=True).flops
    if once.lines and context == tokens:
        found += total(Pass("", {"B": batch, "T": source, "S": source}, once), dense=True).flops
    for block, count in kinds(config.decoder.layers).items() if config.decoder else ():
        found += count * sum(_difference(mixer, batch, tokens, context) for mixer in _mixers(block))
        found += count * _idle_experts(config, block, batch * tokens)
    return found


def _mixers(block: Block) -> tuple:
    mixer = block.self_attn
    return (mixer.attention, mixer.state_space) if isinstance(mixer, Both) else (mixer,) if mixer else ()


def _difference(mixer, batch: int, tokens: int, context: int) -> int:
    """What one layer's mixer multiplies in eager code beyond the op list, or, if negative, does not."""
    if isinstance(mixer, LatentAttention):
        return 0
    for kind, differences in DIFFERENCES.items():
        if isinstance(mixer, kind):
            return sum(batch * difference(mixer, tokens, context) for difference in differences)
    raise ConfigError(f"{type(mixer).__name__}: what eager code multiplies is not understood; leave the comparison out")


def _later_token(tokens: int, context: int) -> bool:
    """A single token after others: most mixers have a form of their own for it."""
    return tokens == 1 and context > 1


def _window(mixer: Attention, tokens: int, context: int) -> int:
    """A layer of a limited reach keeps one key less than that, so a later call has fewer keys than the context.

    In the first call every pair is multiplied, also those that the mask hides.
    """
    reach = mixer.sliding_window or mixer.attention_chunk_size
    if reach is None or context == tokens:
        return 0
    keys = min(context - tokens, reach - 1) + tokens
    width = mixer.head_dim + (mixer.v_head_dim or mixer.head_dim)
    return 2 * mixer.num_attention_heads * width * tokens * (keys - context)


def _convolution(mixer: Mamba | Mamba2 | GatedDeltaNet | ShortConvolution, tokens: int, context: int) -> int:
    """A causal convolution of k taps runs over padding or its state, and its output is cut to size.

    The first call pads its tokens to at least k, and those by k - 1 on both sides. A later one of a single token runs
    over k + 1 values without padding: two outputs. A later one of several runs over the state too, and is padded.
    """
    taps, channels = mixer.dims["k"], mixer.dims["x"]
    given = max(tokens, taps) if context == tokens else taps + tokens
    outputs = 2 if _later_token(tokens, context) else given + taps - 1
    return 2 * channels * taps * (outputs - tokens)


def _recurrence_convolution(mixer: GatedLinearRecurrence, tokens: int, context: int) -> int:
    """This convolution pads the tokens of a call by k - 1 on both sides; a single token is taken element by element."""
    taps, channels = mixer.dims["k"], mixer.dims["x"]
    outputs = 0 if tokens == 1 else tokens + taps - 1
    return 2 * channels * taps * (outputs - tokens)


def _state_space(mixer: Mamba2, tokens: int, context: int) -> int:
    """The state space in chunks, the last one padded; a later single token is only read, its writing is no product.

    In a chunk: scores of each head, scores with values, the writing, the reading. Between the chunks: every chunk's
    state is made of all those before it, by a product over a masked square.
    """
    heads, state, chunk = mixer.num_heads, mixer.head_dim * mixer.state_size, mixer.chunk_size
    counted = 2 * 2 * heads * state * tokens
    if _later_token(tokens, context):
        return counted // 2 - counted
    chunks = -(-tokens // chunk)
    within = chunk * chunk * (mixer.state_size + mixer.head_dim) + 2 * chunk * state
    return 2 * heads * (chunks * within + (chunks + 1) ** 2 * state) - counted


def _delta_rule(mixer: GatedDeltaNet, tokens: int, context: int) -> int:
    """The gated delta rule in chunks, the last one padded; a later single token is taken element by element: 0.

    In a chunk: keys with keys and queries with keys, the state's prediction and what it is read for, scores with
    values, the writing. The triangular system between them is solved by a call that no counter counts.
    """
    j, u, chunk = mixer.linear_key_head_dim, mixer.linear_value_head_dim, DELTA_CHUNK
    chunks = 0 if _later_token(tokens, context) else -(-tokens // chunk)
    within = chunk * chunk * (2 * j + u) + 3 * chunk * j * u
    return 2 * mixer.linear_num_value_heads * (chunks * within - 3 * tokens * j * u)


def _lightning(mixer: LightningAttention, tokens: int, context: int) -> int:
    """Lightning attention in blocks, in the first call: all pairs of a block, besides writing and reading a state."""
    if context > tokens:
        return 0
    whole, rest = divmod(tokens, mixer.block_size)
    return 2 * 2 * mixer.num_attention_heads * mixer.head_dim * (whole * mixer.block_size**2 + rest**2)


def _idle_experts(config: ModelConfig, block: Block, tokens: int) -> int:
    """Experts that multiply every token, whatever the router chose."""
    moe = block.mlp
    if (config.keys or {}).get("model_type") not in EVERY_EXPERT or not isinstance(moe, MixtureOfExperts):
        return 0
    idle = moe.num_local_experts - moe.num_experts_per_tok
    return 2 * tokens * config.hidden_size * idle * (len(moe.expert.ups) + 1) * moe.expert.intermediate_size


DIFFERENCES = {
    Attention: (_window,),
    Mamba: (_convolution,),
    Mamba2: (_convolution, _state_space),
    GatedDeltaNet: (_convolution, _delta_rule),
    ShortConvolution: (_convolution,),
    LightningAttention: (_lightning,),
    GatedLinearRecurrence: (_recurrence_convolution,),
}
