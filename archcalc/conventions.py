"""What each number of a report counts, in words, and the same report in multiply-adds."""

from __future__ import annotations

from typing import Any

from archcalc.config import ModelConfig, expanded, once_a_config
from archcalc.cost import bound, buffers
from archcalc.logical import held
from archcalc.request import Request


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
    if not config.decoder:
        found["attention"] = "every pair" if request.dense else "every pair, of a window those inside of it"
    if config.encoder:
        del found["logits"]
    if config.encoder and config.decoder:
        found["encode"] = "encoder and the cross keys and values of every decoder layer, once a source"
    found |= _of_parts(config)
    if expanded(config) is not config:
        forms = request.latent or "expanded in the prefill, absorbed in the decode"
        found["latent"] = f"latent attention is {forms}; the cache is the same in both forms"
    if config.quantization:
        found["checkpoint"] = (
            "weights as the file stores them: packed, scales, what stays in 16 bits; without its header"
        )
    if request.eager:
        found["eager"] = (
            "what a FLOP counter sees of transformers: padding, masked pairs, idle experts (archcalc.eager)"
        )
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
    if config.decoder and held(config)[0].state:
        found["state"] = "recurrent and convolution states of a sequence, of one size at any context; bits as of keys"
    if buffers(config):
        found["buffers"] = "stored with the weights and no parameters, such as a router's correction bias"
    return found


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
    found = {name.replace("flops", "macs"): value for name, value in row.items()}  # in the order of the row
    found["macs"] = row["flops"] // 2
    if "intensity_flops_per_byte" in row:
        found["intensity_macs_per_byte"] = row["intensity_flops_per_byte"] / 2
    return found
