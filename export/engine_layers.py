"""What a parsed network must consist of, and which attention in it has no kernel of its own.

The parser multiplies queries and keys, which are the whole cache, by the square root of the scale, whatever an ONNX
Attention's `scale` is. The builder takes both products into the attention: an engine has no kernel for them.
"""

from __future__ import annotations

from collections import Counter
from types import ModuleType

from archcalc.config import Attention, Block, LatentAttention, ModelConfig
from archcalc.parts.norm import Norm
from export.files import ExportError

# Dedicated attention kernels of TensorRT 10 and TensorRT-RTX 1.7.1, found by building one of each size for each
# capability: https://docs.nvidia.com/deeplearning/tensorrt/latest/inference-library/transformers-fused-attention.html
HEAD_SIZES = range(16, 256 + 1, 8)


def expected_layers(config: ModelConfig, stack: str = "decoder") -> Counter[str]:
    """Layers that a parsed graph must have whole, by TensorRT's name: whatever was taken apart runs slower.

    RMS norms are not among them: the parser has no layer for these. Args: stack: which one's graph.
    """
    found = Counter(dict.fromkeys(("KV_CACHE_UPDATE", "ATTENTION_INPUT", "ATTENTION_OUTPUT", "ROTARY_EMBEDDING"), 0))
    for block in config.stacks[stack].layers:
        found.update(_of_mixer(block.self_attn, cached=stack == "decoder"))
        found.update(_of_attention(block.cross_attn))  # its keys and values are inputs: nothing is written
        found["NORMALIZATION"] += _layer_norms(block)
    ends = [config.stacks[stack].final_norm, config.embedding.norm]
    ends += [config.head.norm] if stack == list(config.stacks)[-1] else []
    found["NORMALIZATION"] += sum(map(_whole, ends))
    return found


def _of_mixer(mixer, cached: bool) -> Counter[str]:
    """Of a block's own attention. Recurrences and blocks without one are products and sums: nothing is expected."""
    if not isinstance(mixer, Attention | LatentAttention):
        return Counter()
    kept = not getattr(mixer, "shares_cache", False)  # a latent and its rotary key, or keys and values
    turned = (1 + kept) if mixer.rotary else 0  # queries, and the keys that are kept
    return _of_attention(mixer) + Counter(KV_CACHE_UPDATE=2 * (kept and cached), ROTARY_EMBEDDING=turned)


def _of_attention(attention) -> Counter[str]:
    """One layer, or none where `OnnxKernels.attend` makes products and a softmax of it."""
    whole = int(attention is not None and _is_whole(attention))
    return Counter(ATTENTION_INPUT=whole, ATTENTION_OUTPUT=whole)


def _is_whole(attention) -> bool:
    """Whether TensorRT's attention says it: no sinks and no softcap, keys and values of one width."""
    if isinstance(attention, LatentAttention):
        keys = attention.qk_nope_head_dim + attention.qk_rope_head_dim
        return attention.form == "expanded" and keys == attention.v_head_dim
    capped = attention.sinks or attention.logit_softcap is not None
    return not capped and attention.v_head_dim in (None, attention.head_dim)


def _whole(norm: Norm | None) -> bool:
    return norm is not None and norm.kind == "layernorm"


def _layer_norms(block: Block) -> int:
    sublayers = sum(part is not None for part in (block.self_attn, block.cross_attn, block.mlp))
    if block.parallel == "shared":
        sublayers -= 1  # attention and feed-forward read one norm
    around = {"sandwich": 2, "none": 0}.get(block.norm_placement, 1)
    inside = 2 * _whole(getattr(block.self_attn, "qk_norm", None))
    return sublayers * around * _whole(block.norm) + inside + _whole(getattr(block.self_attn, "output_norm", None))


def layers_by_type(network) -> Counter[str]:
    """How many layers of each type, by TensorRT's name."""
    return Counter(network.get_layer(index).type.name for index in range(network.num_layers))


def check_layers(config: ModelConfig, parsed: Counter[str], stack: str = "decoder") -> None:
    """Raise ExportError unless the parser kept every layer whole that it has one for."""
    for kind, count in expected_layers(config, stack).items():
        if parsed[kind] != count:
            raise ExportError(
                f"{config.name}: TensorRT parsed {parsed[kind]} {kind} layers, not {count}; the graph was taken apart: "
                "use the TensorRT version that archcalc was tested with"
            )


def attentions(trt: ModuleType, network) -> list:
    """Every `IAttention` of the network."""
    found = []
    for index in range(network.num_layers):
        layer = network.get_layer(index)
        if layer.type == trt.LayerType.ATTENTION_INPUT:
            layer.__class__ = trt.IAttentionInputLayer  # the binding hands out ILayer; this is its way to narrow it
            found.append(layer.attention)
    return found


def without_kernel(trt: ModuleType, query, capability: str) -> str | None:
    """Why attention with this query tensor [B, N, T, H] has no kernel of its own; None if it has one."""
    if query.dtype == trt.DataType.FLOAT:
        return "fp32"
    if query.dtype == trt.DataType.BF16 and capability == "sm_75":
        return "bf16 on sm_75"
    return None if query.shape[-1] in HEAD_SIZES else f"head_dim={query.shape[-1]}"


def allow_decomposition(trt: ModuleType, network, capability: str) -> list[str]:
    """Let attention without a kernel run as products and a softmax; the build would fail otherwise.

    Returns: why, each reason once; empty if all attention has kernels.
    """
    reasons = {}
    for attention in attentions(trt, network):
        added = attention.mask is not None and attention.mask.dtype != trt.DataType.BOOL
        if reason := "a bias" if added else without_kernel(trt, attention.get_input(0), capability):
            attention.decomposable = True
            reasons[reason] = None
    return list(reasons)
