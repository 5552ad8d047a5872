"""All numbers of one model and one request, as plain data; `render` makes tables of it.

Integers are exact. Floats (intensity, seconds) follow from them and a device's published peaks.
"""

from __future__ import annotations

from typing import Any

from archcalc.config import ModelConfig, once_a_config
from archcalc.conventions import conventions, in_macs
from archcalc.cost import active_parameters, bound, buffers, check_request, parameters, passes
from archcalc.counts import expert_rows, parameter_counts
from archcalc.errors import one_of
from archcalc.hardware import device
from archcalc.logical import kv_cache
from archcalc.memory import reserved
from archcalc.ops import Op
from archcalc.precision import PRECISIONS, Precision, precision
from archcalc.request import USUAL, Request
from archcalc.roofline import Roofline, roofline


def formula(op: Op) -> str:
    """The op's parameters as axis letters: `D·N·H + N·H`; empty for an op without weights of its own."""
    return " + ".join("·".join(t.axes) for t in op.weights)


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


def _pass_row(run: Roofline) -> dict[str, Any]:
    return run._asdict() | {"intensity_flops_per_byte": run.intensity}


@once_a_config
def _sizes(config: ModelConfig) -> tuple[dict, dict, dict]:
    """What no request changes: parameters, blocks, weight bytes by precision."""
    total, rows = parameters(config), parameter_rows(config)
    found = {"total": total, "active": active_parameters(config), "buffers": buffers(config)}
    found |= {"conventions": parameter_counts(config), "parts": rows}
    return found, per_block(rows), {name: p.stored_bytes(total) for name, p in PRECISIONS.items()}


def _copied(found: dict) -> dict:
    """A copy of nested tables, so that a report can be changed and the next one is not."""
    return {name: dict(value) for name, value in found.items()}


def report(config: ModelConfig, request: Request = USUAL) -> dict[str, Any]:
    """All numbers of the model for a request.

    Returns:
        plain data: `parameters`, `blocks`, `weight_bytes` by precision, `kv_cache` in bytes, `passes`
        (FLOPs, bytes, seconds at the roofline, each with its parts) and the `conventions` of all of them; what the
        model has or the request asks for: `experts`, `checkpoint` (quantized), `reserved`, `explain`.
    Raises:
        ConfigError: a size that is no request, an unknown device or precision.
    """
    prompt = min(1024, config.max_position_embeddings) if request.prompt is None else request.prompt
    context = prompt if request.context is None else request.context
    check_request(config, request.batch, prompt, context)
    one_of("latent", request.latent, (None, "absorbed", "expanded"))
    hardware, weights = device(request.device), precision(request.precision)
    kv_name = request.kv_precision or {4: "fp32", 2: "bf16"}[weights.activation_bytes]
    cache = precision(kv_name)
    sizes, blocks, stored = _sizes(config)
    source = config.source_tokens(prompt) if config.encoder and config.decoder else 0
    kv = kv_cache(config, request.batch, context, source, cache)
    runs = passes(config, request.batch, prompt, context, request.last_logits, request.latent)
    needed = stored[request.precision] + kv["bytes"] + kv.get("cross_bytes", 0) + kv.get("state_bytes", 0)
    found = {
        "model": config.name,
        "request": {"batch": request.batch, **({"source": source} if source else {"prompt": prompt})}
        | {"context": context, "precision": request.precision, "kv_precision": kv_name}
        | {"device": hardware.name, "device_source": hardware.source},
        "parameters": sizes
        | {"conventions": _copied(sizes["conventions"]), "parts": [dict(row) for row in sizes["parts"]]},
        "blocks": _copied(blocks),
        "left_out": list(config.left_out),
        "assumed": dict(config.assumed),
        "weight_bytes": dict(stored),
        "kv_cache": kv,
        "memory": {"needed_bytes": needed, "device_bytes": int(hardware.memory_bytes)},
        "unit": "FLOPs",
        "passes": [_pass_row(roofline(run, hardware, weights, cache, request.dense)) for run in runs],
        "conventions": conventions(config, request),
    }
    return _asked(config, request, found, runs, weights, cache)


def _asked(config: ModelConfig, request: Request, found: dict, runs: list, weights: Precision, kv: Precision) -> dict:
    """The report with what only some models have or only some requests ask for."""
    context = found["request"]["context"]
    source = found["request"].get("source", 0)
    if "experts" in found["conventions"]:
        found["experts"] = expert_rows(config, weights)
    if config.quantization:
        from archcalc.quantization.checkpoint import checkpoint_row

        found["checkpoint"] = checkpoint_row(config)
    if request.eager:
        from archcalc.eager import eager_flops

        prompt = found["request"].get("prompt", source)
        logits = 1 if request.last_logits else None
        found["eager_flops"] = {"first_call": eager_flops(config, request.batch, prompt, prompt, logits)}
        if config.decoder and not config.encoder:
            found["eager_flops"]["later_token"] = eager_flops(config, request.batch, 1, context)
    if request.paged:
        found["reserved"] = reserved(config, request.paged, request.batch, context, source, kv)
    if request.explain is not None:
        from archcalc.explain import Asked, explain  # the report alone needs none of it

        asked = Asked(request.batch, context, source, request.dense, request.macs, weights.bits, kv.bits)
        found["explain"] = explain(config, request.explain, runs, asked)
    return in_macs(found) if request.macs else found
