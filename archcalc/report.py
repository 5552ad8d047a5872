"""All numbers of one model and one request, as plain data; `render` makes tables of it.

Integers are exact. Floats (intensity, seconds) follow from them and a device's published peaks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from archcalc.config import ModelConfig, once_a_config
from archcalc.cost import active_parameters, bound, cache_elements, check_request, parameters, passes
from archcalc.hardware import device
from archcalc.ops import Op
from archcalc.precision import PRECISIONS, Precision, precision
from archcalc.roofline import Roofline, roofline


@dataclass(frozen=True)
class Request:
    """What is asked of the model.

    Args:
        batch: sequences at once.
        prompt: input tokens a sequence (encoder-decoder: source tokens); default 1024, or all positions if fewer.
        context: tokens a decode step attends over, its own included; default the prompt.
        precision, kv_precision: number formats of weights and products, and of keys and values
            (default: the format of the activations).
        dense: count every (query, key) pair, also those that the causal mask or a window hides.
        last_logits: prefill makes logits of its last position only.
    """

    batch: int = 1
    prompt: int | None = None
    context: int | None = None
    precision: str = "bf16"
    kv_precision: str | None = None
    device: str = "h100-sxm"
    dense: bool = False
    last_logits: bool = False


def formula(op: Op) -> str:
    """The op's parameters as axis letters: `D·N·H + N·H`; empty for an op without weights of its own."""
    return " + ".join("·".join(t.axes) for t in op.weights)


def conventions(config: ModelConfig, request: Request) -> dict[str, str]:
    """What each number of the report counts."""
    pairs = "every pair, masked or not (dense)" if request.dense else "only pairs that the mask lets through (causal)"
    logits = "the last position" if request.last_logits else "all positions"
    found = {
        "parameters": "every stored weight; a tied matrix once; sinusoids and rotary tables are computed, not stored",
        "flops": "matrix products only, a multiply-add is 2 FLOPs; norms, softmax, activations and lookups count 0",
        "attention": pairs,
        "logits": f"prefill makes logits of {logits}",
        "kv_cache": "logical: a windowed layer keeps its window; no block rounding",
        "weight_bytes": "all weights at these bits, without the scales of a quantizer",
        "time": "limit: sum over ops of max(FLOPs / peak, bytes / bandwidth); no launches, no overlap",
        "units": "1 GB = 10^9 bytes, 1 GiB = 2^30 bytes, 1 TFLOPs = 10^12 FLOPs",
    }
    if config.encoder:
        del found["logits"]
        found["encode"] = "encoder and the cross keys and values of every decoder layer, once a source"
    if any(line.op.gather == "E" for part in bound(config) for line in part.lines):
        found["active"] = "parameters that one token uses: top-k experts, everything else whole, embeddings included"
        found["experts"] = "a pass reads as many experts as its tokens can reach at most"
    return found


def parameter_rows(config: ModelConfig) -> list[dict[str, Any]]:
    """Each op that owns weights: its formula, parameters of one layer, how many layers, and in total."""
    rows = []
    for line in (line for part in bound(config) for line in part.lines if line.params):
        rows.append(
            {
                "name": line.name,
                "formula": formula(line.op),
                "per_layer": line.params,
                "layers": line.count,
                "total": line.count * line.params,
                "block": line.group.block,
            }
        )
    return rows


def per_block(rows: list[dict[str, Any]]) -> dict[str, dict[str, int]]:
    """Attention, feed-forward, norms and the whole of each kind of block."""
    blocks: dict[str, dict[str, int]] = {}
    for row in rows:
        if row["block"]:
            name = row["name"].split("*.")[-1]
            part = "norms" if name.endswith("_norm") else {"mlp": "feed_forward"}.get(name.split(".")[0], "attention")
            block = blocks.setdefault(row["block"], {"attention": 0, "feed_forward": 0, "norms": 0, "total": 0})
            block[part] += row["per_layer"]
            block["total"] += row["per_layer"]
    return blocks


def kv_cache(config: ModelConfig, batch: int, context: int, source: int, stored: Precision) -> dict[str, int]:
    """Bytes of the self and cross caches, for one more token and for the whole request.

    Args:
        context, source: tokens of the decoder and of the source. stored: number format of keys and values.
    """
    step = bound(config)[1]
    own, cross, state = cache_elements(step, batch, context, source)
    one_own, one_cross, _ = cache_elements(step, 1, 1, 1)
    found = {"bytes_per_token": stored.stored_bytes(one_own), "bytes": stored.stored_bytes(own)}
    if config.encoder:
        found |= {
            "cross_bytes_per_source_token": stored.stored_bytes(one_cross),
            "cross_bytes": stored.stored_bytes(cross),
        }
    return found


def _pass_row(run: Roofline) -> dict[str, Any]:
    row = run._asdict() | {"intensity_flops_per_byte": run.intensity}
    row["parts"] = [part._asdict() for part in run.parts]
    return row


@once_a_config
def _sizes(config: ModelConfig) -> tuple[int, int, list, dict, dict]:
    """What no request changes: parameters, active ones, rows, blocks, weight bytes by precision."""
    total, rows = parameters(config), parameter_rows(config)
    stored = {name: p.stored_bytes(total) for name, p in PRECISIONS.items()}
    return total, active_parameters(config), rows, per_block(rows), stored


def report(config: ModelConfig, request: Request = Request()) -> dict[str, Any]:
    """All numbers of the model for a request.

    Returns:
        plain data: `parameters`, `blocks`, `weight_bytes` by precision, `kv_cache` in bytes, `passes`
        (FLOPs, bytes, seconds at the roofline, each with its parts) and the `conventions` of all of them.
    Raises:
        ConfigError: a size that is no request, an unknown device or precision.
    """
    prompt = min(1024, config.max_position_embeddings) if request.prompt is None else request.prompt
    context = prompt if request.context is None else request.context
    check_request(config, request.batch, prompt, context)
    hardware, weights = device(request.device), precision(request.precision)
    kv_name = request.kv_precision or {4: "fp32", 2: "bf16"}[weights.activation_bytes]
    cache = precision(kv_name)
    total, active, rows, blocks, stored = _sizes(config)
    kv = kv_cache(config, request.batch, context, prompt, cache)
    runs = passes(config, request.batch, prompt, context, request.last_logits)
    needed = stored[request.precision] + kv["bytes"] + kv.get("cross_bytes", 0)
    return {
        "model": config.name,
        "request": {
            "batch": request.batch,
            "source" if config.encoder else "prompt": prompt,
            "context": context,
            "precision": request.precision,
            "kv_precision": kv_name,
            "device": hardware.name,
            "device_source": hardware.source,
        },
        "parameters": {"total": total, "active": active, "parts": [dict(row) for row in rows]},
        "blocks": {name: dict(block) for name, block in blocks.items()},
        "weight_bytes": dict(stored),
        "kv_cache": kv,
        "memory": {"needed_bytes": needed, "device_bytes": int(hardware.memory_bytes)},
        "passes": [_pass_row(roofline(run, hardware, weights, cache, request.dense)) for run in runs],
        "conventions": conventions(config, request),
    }
