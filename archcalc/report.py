"""All numbers of one model and one request, as plain data; `render` makes tables of it.

Integers are exact. Floats (intensity, seconds) follow from them and a device's published peaks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from archcalc.config import ModelConfig, expanded, once_a_config
from archcalc.cost import active_parameters, bound, buffers, cache_elements, check_request, parameters, passes
from archcalc.counts import expert_rows, parameter_counts
from archcalc.errors import one_of
from archcalc.hardware import device
from archcalc.memory import Paged, reserved
from archcalc.ops import Op
from archcalc.precision import PRECISIONS, Precision, precision
from archcalc.roofline import Roofline, roofline

FAR = 2**40  # a context that no window reaches


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
        latent: form of latent attention in both passes, `absorbed` or `expanded`; None: expanded in the prefill and
            absorbed in the decode, as engines do.
        macs: multiply-adds in place of FLOPs; a multiply-add is 2 FLOPs.
        paged: the cache that an engine reserves, beside the logical one; None for none.
        explain: a quantity (`archcalc.explain.QUANTITIES`) whose summands are listed.
    """

    batch: int = 1
    prompt: int | None = None
    context: int | None = None
    precision: str = "bf16"
    kv_precision: str | None = None
    device: str = "h100-sxm"
    dense: bool = False
    last_logits: bool = False
    latent: str | None = None
    macs: bool = False
    paged: Paged | None = None
    explain: str | None = None


def formula(op: Op) -> str:
    """The op's parameters as axis letters: `D·N·H + N·H`; empty for an op without weights of its own."""
    return " + ".join("·".join(t.axes) for t in op.weights)


def conventions(config: ModelConfig, request: Request) -> dict[str, str]:
    """What each number of the report counts."""
    pairs = "every pair, masked or not (dense)" if request.dense else "only pairs that the mask lets through (causal)"
    found = {
        "parameters": "every stored weight; a tied matrix once; sinusoids and rotary tables are computed, not stored",
        "flops": "matrix products only, a multiply-add is 2 FLOPs; norms, softmax, activations and lookups count 0",
        "attention": pairs,
        "logits": f"prefill makes logits of {'the last position' if request.last_logits else 'all positions'}",
        "kv_cache": "logical: a windowed layer keeps its window; no block rounding",
        "weight_bytes": "all weights at these bits, without the scales of a quantizer",
        "time": "limit: sum over ops of max(FLOPs / peak, bytes / bandwidth); no launches, no overlap",
        "units": "1 GB = 10^9 bytes, 1 GiB = 2^30 bytes, 1 TFLOPs = 10^12 FLOPs",
    }
    if config.encoder:
        del found["logits"]
    if config.encoder and config.decoder:
        found["encode"] = "encoder and the cross keys and values of every decoder layer, once a source"
    found |= _of_parts(config)
    if expanded(config) is not config:
        forms = request.latent or "expanded in the prefill, absorbed in the decode"
        found["latent"] = f"latent attention is {forms}; the cache is the same in both forms"
    if request.paged:
        found["reserved"] = RESERVED_AS_FULL if request.paged.windowed_as_full else RESERVED
    return found


RESERVED = (
    "whole blocks, bytes of one rank; a windowed layer holds ceil((W - 1 + chunk)/block) + 1 blocks, at most those of "
    "the length; key/value heads are split over ranks while they last, then replicated; latents are replicated"
)
RESERVED_AS_FULL = RESERVED.replace(
    "holds ceil((W - 1 + chunk)/block) + 1 blocks, at most those of the length", "is charged the whole length"
)


@once_a_config
def _of_parts(config: ModelConfig) -> dict[str, str]:
    """Conventions that only models with certain parts need."""
    found = {}
    if any(line.op.gather == "E" for part in bound(config) for line in part.lines):
        found["active"] = "parameters that one token uses: top-k experts, everything else whole, embeddings included"
        found["experts"] = "a pass reads as many experts as its tokens can reach at most"
        found["expected experts"] = "E·(1 - (1 - k/E)^tokens): every token chooses k of E uniformly and by itself"
    if config.decoder and _held(config)[0].state:
        found["state"] = "recurrent and convolution states of a sequence, of one size at any context, at the bits of keys"
    if buffers(config):
        found["buffers"] = "stored with the weights and no parameters, such as a router's correction bias"
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


@once_a_config
def _held(config: ModelConfig) -> tuple:
    """(elements of one token, and of the state of a sequence; of one more token beyond every window; what windows hold
    beyond that)."""
    step = bound(config)[1]
    far = cache_elements(step, 1, FAR).cache
    slope = cache_elements(step, 1, FAR + 1).cache - far
    return cache_elements(step, 1, 1, 1), slope, far - slope * FAR


def kv_cache(config: ModelConfig, batch: int, context: int, source: int, stored: Precision) -> dict[str, int]:
    """Bytes of the self and cross caches and of recurrent states, for one more token and for the whole request.

    Where windows end, a token costs less: at a long context a sequence takes `constant_bytes` + `slope_bytes_per_token`
    times its tokens. An encoder alone keeps nothing.

    Args:
        context, source: tokens of the decoder and of the source. stored: number format of keys and values.
    """
    if not config.decoder:
        return {"bytes_per_token": 0, "bytes": 0}
    one, slope, constant = _held(config)
    own, cross, state = cache_elements(bound(config)[1], batch, context, source)
    found = {"bytes_per_token": stored.stored_bytes(one.cache), "bytes": stored.stored_bytes(own)}
    if config.encoder:
        found |= {
            "cross_bytes_per_source_token": stored.stored_bytes(one.cross),
            "cross_bytes": stored.stored_bytes(cross),
        }
    if constant:
        found |= {"slope_bytes_per_token": stored.stored_bytes(slope), "constant_bytes": stored.stored_bytes(constant)}
    if state:
        found |= {
            "state_bytes_per_sequence": stored.stored_bytes(one.state),
            "state_bytes": stored.stored_bytes(state),
        }
    return found


def _pass_row(run: Roofline) -> dict[str, Any]:
    row = run._asdict() | {"intensity_flops_per_byte": run.intensity}
    row["parts"] = [part._asdict() for part in run.parts]
    return row


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


def report(config: ModelConfig, request: Request = Request()) -> dict[str, Any]:
    """All numbers of the model for a request.

    Returns:
        plain data: `parameters`, `blocks`, `weight_bytes` by precision, `kv_cache` in bytes, `passes`
        (FLOPs, bytes, seconds at the roofline, each with its parts) and the `conventions` of all of them; what the
        model has or the request asks for: `experts`, `reserved`, `explain`.
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
        "request": {
            "batch": request.batch,
            **({"source": source} if source else {"prompt": prompt}),
            "context": context,
            "precision": request.precision,
            "kv_precision": kv_name,
            "device": hardware.name,
            "device_source": hardware.source,
        },
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
    if request.paged:
        found["reserved"] = reserved(config, request.paged, request.batch, context, source, kv)
    if request.explain:
        from archcalc.explain import Asked, explain  # the report alone needs none of it

        asked = Asked(request.batch, context, source, request.dense, request.macs, weights.bits, kv.bits)
        found["explain"] = explain(config, request.explain, runs, asked)
    return in_macs(found) if request.macs else found


def in_macs(found: dict[str, Any]) -> dict[str, Any]:
    """The report with multiply-adds in place of FLOPs, by name and by number, and what that changes in words."""
    words = dict(found["conventions"])
    macs = {"macs": "matrix products only, multiply-adds (half the FLOPs); norms, softmax and lookups count 0"}
    time, units = words["time"].replace("FLOPs", "2·MACs"), words["units"].replace("FLOPs", "MACs")
    words = {("macs" if n == "flops" else n): macs["macs"] if n == "flops" else text for n, text in words.items()}
    return found | {
        "unit": "MACs",
        "passes": [_halved(run) | {"parts": [_halved(part) for part in run["parts"]]} for run in found["passes"]],
        "conventions": words | {"time": time, "units": units},
    }


def _halved(row: dict[str, Any]) -> dict[str, Any]:
    halves = {"flops": ("macs", lambda n: n // 2), "intensity_flops_per_byte": ("intensity_macs_per_byte", lambda x: x / 2)}
    return dict((halves[name][0], halves[name][1](value)) if name in halves else (name, value) for name, value in row.items())
