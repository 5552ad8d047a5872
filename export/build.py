"""`export build`: a folder with graphs, one data file of weights, and a manifest that says what they are."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import torch

from archcalc.config import ModelConfig, positive
from archcalc.cost import bound, cache_elements, parameters
from archcalc.errors import ConfigError, one_of
from archcalc.hf import config_from_keys, read_json
from export.expressible import check_exportable
from export.files import ExportError, replaced_folder, sha256
from export.graph import WEIGHTS, Parts, Stored, assemble, calls, layout, parts, states
from export.onnx_from_torch import Tracer
from export.precision import ExportPrecision, export_precision
from export.reference import reference
from export.weights_file import write_weights
from models.progress import progress
from models.provenance import versions

MANIFEST = "manifest.json"
TARGETS = ("any", "onnxruntime")
FORMAT = 2
PACKAGES = ("archcalc", "torch", "onnx", "onnxscript", "onnxruntime", "tensorrt-rtx", "tensorrt")


def graph_name(capacity: int) -> str:
    return f"model-{capacity}.onnx"


@dataclass(frozen=True)
class Build:
    """An opened and checked build folder."""

    folder: Path
    config: ModelConfig
    precision: ExportPrecision
    capacities: tuple[int, ...]
    manifest: dict[str, Any]

    def graph(self, capacity: int) -> Path:
        return self.folder / graph_name(capacity)

    def capacity_for(self, tokens: int) -> int:
        """The smallest cache that holds so many tokens. Raises: ExportError if none does."""
        fitting = [c for c in self.capacities if c >= tokens]
        if not fitting:
            raise ExportError(
                f"context={tokens}: the build holds at most {max(self.capacities)} tokens; "
                f"build with --capacity {tokens} or more"
            )
        return min(fitting)


def build(
    config: ModelConfig,
    out: Path,
    precision: str | ExportPrecision = "fp32",
    capacities: tuple[int, ...] | None = None,
    model: torch.nn.Module | None = None,
    weights_source: dict[str, Any] | None = None,
    target: str = "any",
) -> Build:
    """Export the model into the folder `out`, which is replaced only when everything is written.

    Args:
        precision: a name, or what `export_precision` gives.
        capacities: tokens a sequence of the static cache; one graph each, all over the same weights.
            Default: 1024, or all positions if fewer.
        model, weights_source: what `reference.reference` gave; by default the model with random weights.
        target: "any" runtime, or "onnxruntime": with its own fused operators, which no other runtime has.
    Raises: ExportError or ConfigError for what cannot be exported; nothing is left behind.
    """
    kind = export_precision(precision) if isinstance(precision, str) else precision
    one_of("target", target, TARGETS)
    if config.keys is None:
        raise ConfigError("config: built by hand, without Hugging Face keys for the manifest; use config_from_keys")
    check_exportable(config)
    capacities = capacities or (min(1024, config.max_position_embeddings),)
    for capacity in capacities:
        positive(capacity=capacity)
        if capacity > config.max_position_embeddings:
            raise ExportError(
                f"capacity={capacity}: the model has max_position_embeddings={config.max_position_embeddings}; "
                "give at most that many"
            )
    if model is None:
        model, weights_source = reference(config, "random")
    with replaced_folder(out, MANIFEST) as folder:
        traced = {c: parts(Tracer(config, kind.torch, c), kind, target) for c in progress(capacities, "trace")}
        weights = dict(model.named_parameters()) | dict(model.named_buffers())
        places = stored(config, next(iter(traced.values())), weights, kind)
        write_weights(folder / WEIGHTS, places, progress(weights.items(), "write weights"), kind)
        operators: Counter[str] = Counter()
        for capacity, found in traced.items():
            graph = assemble(config, found, places, kind, capacity)
            onnx.save_model(graph, folder / graph_name(capacity))
            onnx.checker.check_model(folder / graph_name(capacity))
            operators = _operators(graph)
        manifest = _manifest(config, kind, capacities, operators, weights_source, folder, places)
        manifest["target"] = target
        (folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")
    return open_build(out)


def stored(config: ModelConfig, found: Parts, weights: dict[str, torch.Tensor], kind: ExportPrecision):
    """The place of each tensor of a build in its data file."""
    return layout(calls(config, found), found.forms, weights, kind)


def _operators(graph: onnx.ModelProto) -> Counter[str]:
    """How often each operator runs in one pass."""
    inside = {f.name: Counter(node.op_type for node in f.node) for f in graph.functions}
    found: Counter[str] = Counter()
    for node in graph.graph.node:
        found += inside[node.op_type]
    return found


def _manifest(
    config, kind: ExportPrecision, capacities, operators, weights_source: dict, folder: Path, places: dict[str, Stored]
) -> dict:
    total = parameters(config)
    kv = {c: sum(cache_elements(bound(config)[1], 1, c, static=True)) * kind.numpy.itemsize for c in capacities}
    files = [WEIGHTS, *map(graph_name, capacities)]
    return {
        "format": FORMAT,
        "name": config.name,
        "config": config.keys,
        "precision": kind.name,
        "activations": kind.activations,
        "group_size": kind.quantization.group_size if kind.quantization and not kind.quantization.dynamic else None,
        "capacities": list(capacities),
        "weights": weights_source,
        "shapes": {
            "input_ids, position_ids": ["batch", "tokens"],
            "write_indices": ["batch"],
            "logit_indices": ["batch", "logit_positions"],
            "logits": ["batch", "logit_positions", config.vocab_size],
            "keys and values": ["batch", "num_key_value_heads", "capacity", "head_dim"],
            "cache_tensors": sum(map(len, states(config, 1))),
        },
        "predicted": {
            "parameters": total,
            "weight_bytes": sum(place.nbytes for place in places.values()),
            "kv_bytes_per_sequence": {str(c): count for c, count in kv.items()},
        },
        "operators": dict(sorted(operators.items())),
        "versions": versions(PACKAGES),
        "files": {f: {"bytes": (folder / f).stat().st_size, "sha256": sha256(folder / f)} for f in files},
    }


def open_build(folder: str | Path) -> Build:
    """Open a build folder and check that every file is what the manifest says.

    Raises: ExportError if a file is missing, changed, or refers to anything outside of the folder.
    """
    folder = Path(folder)
    manifest = read_json(str(folder / MANIFEST))
    if manifest.get("format") != FORMAT:
        raise ExportError(f"{folder / MANIFEST}: format={manifest.get('format')!r}, not {FORMAT}; build it again")
    try:
        config = config_from_keys(manifest["config"], name=str(manifest["name"]))
        precision, capacities = _precision(manifest), tuple(manifest["capacities"])
        files = manifest["files"]
        one_of("target", manifest["target"], TARGETS)
        one_of("weights.kind", manifest["weights"]["kind"], ("random", "file"))
        positive(capacities=len(capacities), **{f"capacity_{c}": c for c in capacities})
        for name in (WEIGHTS, *map(graph_name, capacities)):
            _check_file(folder / name, files[name])
    except (KeyError, TypeError, AttributeError) as error:
        raise ExportError(f"{folder / MANIFEST}: incomplete ({error!r}); build it again") from None
    opened = Build(folder, config, precision, capacities, manifest)
    for capacity in capacities:
        _check_references(opened.graph(capacity))
    return opened


def _precision(manifest: dict[str, Any]) -> ExportPrecision:
    if manifest["group_size"] is None and manifest["precision"] == manifest["activations"]:
        return export_precision(manifest["precision"])
    return export_precision(manifest["precision"], manifest["activations"], manifest["group_size"])


def _check_file(path: Path, expected: dict[str, Any]) -> None:
    if not path.is_file() or path.is_symlink():
        raise ExportError(f"{path}: missing; build it again")
    if path.stat().st_size != expected["bytes"] or sha256(path) != expected["sha256"]:
        raise ExportError(f"{path}: not the file that was built (size or SHA-256 differs); build it again")


def _check_references(path: Path) -> None:
    """The data file is the only thing outside of the graph that it may name, wherever in it a tensor stands."""
    model = onnx.load(path, load_external_data=False)
    held = [*model.graph.initializer, *_constants(model.graph.node)]
    for function in model.functions:
        held += _constants(function.node)
    for tensor in held:
        named = {entry.key: entry.value for entry in tensor.external_data}
        if named.get("location", WEIGHTS) != WEIGHTS:
            raise ExportError(f"{path}: {tensor.name} lies in {named['location']!r}; only {WEIGHTS} is read")


def _constants(nodes) -> Iterator[onnx.TensorProto]:
    """Tensors in the attributes of nodes, also of nodes in their subgraphs."""
    for node in nodes:
        for attribute in node.attribute:
            yield from (attribute.t, *attribute.tensors)
            for graph in (attribute.g, *attribute.graphs):
                yield from graph.initializer
                yield from _constants(graph.node)
