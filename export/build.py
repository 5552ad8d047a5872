"""`export build`: a folder with graphs, one data file of weights, and a manifest that says what they are."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import torch
from google.protobuf.message import DecodeError

from archcalc.config import ModelConfig, Recurrent, positive
from archcalc.cost import bound, cache_elements, parameters
from archcalc.errors import ConfigError, one_of
from archcalc.hf import config_from_keys, read_json
from export.encoder import ENCODER, EncoderTracer, assemble_encoder, check_cross_once, inputs, outputs
from export.expressible import check_exportable
from export.files import ExportError, check_space, file_sums, replaced_folder
from export.fused import check_fusible
from export.graph import WEIGHTS, Parts, Stored, assemble, calls, cross_tensors, layout, parts, source_axis, states
from export.linked_weights import link, linked_places, stand_ins
from export.onnx_from_torch import Tracer
from export.onnx_kernels import OnnxKernels, WholeSoftcap
from export.precision import ExportPrecision, export_precision
from export.source import Source, model_source, random_source
from export.tracing import BATCH, POSITIONS, TOKENS
from export.weights_file import write_weights
from models.progress import progress
from models.provenance import versions

MANIFEST = "manifest.json"
KERNELS = {"any": OnnxKernels, "onnxruntime": WholeSoftcap}
TARGETS = tuple(KERNELS)
FORMAT = 2
PACKAGES = ("archcalc", "torch", "onnx", "onnxscript", "onnxruntime", "tensorrt-rtx", "tensorrt")


def graph_name(capacity: int) -> str:
    return f"model-{capacity}.onnx"


def graph_names(config: ModelConfig, capacities: tuple[int, ...]) -> list[str]:
    """The files of a build's graphs: the encoder's, and one for each capacity of a decoder's cache."""
    return [*([ENCODER] if config.encoder else ()), *map(graph_name, capacities)]


@dataclass(frozen=True)
class Build:
    """An opened and checked build folder. `capacities` are those of a decoder's cache, none without a decoder."""

    folder: Path
    config: ModelConfig
    precision: ExportPrecision
    capacities: tuple[int, ...]
    manifest: dict[str, Any]

    @property
    def encoder(self) -> Path:
        return self.folder / ENCODER

    @property
    def data(self) -> dict[str, str]:
        """Files with weights and their SHA-256: the build's own, or the checkpoint's that are linked into it."""
        graphs = graph_names(self.config, self.capacities)
        return {name: file["sha256"] for name, file in self.manifest["files"].items() if name not in graphs}

    @property
    def pads_in_front(self) -> bool:
        """Whether unequal prompts must be padded in front: a recurrent state cannot take back what it has read."""
        return any(isinstance(block.self_attn, Recurrent) for block in self.config.decoder.layers)

    def graph(self, capacity: int | None) -> Path:
        """The graph over a cache of so many tokens a sequence; None: the encoder's."""
        return self.encoder if capacity is None else self.folder / graph_name(capacity)

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
    source: Source | None = None,
    link_weights: bool = False,
) -> Build:
    """Export the model into the folder `out`, which is replaced only when everything is written.

    Args:
        precision: a name, or what `export_precision` gives.
        capacities: tokens a sequence of the static cache; one graph each, all over the same weights.
            Default: 1024, or all positions if fewer. None without a decoder.
        model, weights_source: what `reference.reference` gave, for weights that are in memory.
        source: weights that are not; by default random ones.
        link_weights: refer to the checkpoint's own files instead of writing the weights once more.
        target: "any" runtime, or "onnxruntime": with its own fused operators, which no other runtime has.
    Raises: ExportError or ConfigError for what cannot be exported; nothing is left behind.
    """
    kind = export_precision(precision) if isinstance(precision, str) else precision
    one_of("target", target, TARGETS)
    if config.keys is None:
        raise ConfigError("config: built by hand, without Hugging Face keys for the manifest; use config_from_keys")
    check_exportable(config)
    if target == "onnxruntime":
        check_fusible(config)
    capacities = _capacities(config, capacities)
    source = source or (random_source(config) if model is None else model_source(model, weights_source))
    with replaced_folder(out, MANIFEST) as folder:
        encoder = parts(EncoderTracer(config, kind.torch), kind) if config.encoder else None
        tracers = {c: Tracer(config, kind.torch, c, KERNELS[target]) for c in capacities}
        traced = {c: parts(tracer, kind, target, not link_weights) for c, tracer in progress(tracers.items(), "trace")}
        places = stored(config, next(iter(traced.values()), None), source.weights, kind, encoder)
        files, sums = [], {}
        if link_weights:
            places, files = linked_places(places, source.checkpoint)
        else:
            check_space(folder, sum(place.nbytes for place in places.values()))
            sums = {WEIGHTS: write_weights(folder / WEIGHTS, places, progress(source.rows(), "write weights"), kind)}
        graphs = {graph_name(c): assemble(config, found, places, kind, c) for c, found in traced.items()}
        if encoder:
            graphs[ENCODER] = assemble_encoder(config, encoder, places, kind)
        if config.encoder and config.decoder:
            check_cross_once(config, graphs[ENCODER], [graphs[graph_name(c)] for c in capacities])
        with stand_ins(files, folder):
            for name, graph in graphs.items():
                onnx.save_model(graph, folder / name)
                onnx.checker.check_model(folder / name)
        link(files, folder)
        manifest = _manifest(config, kind, capacities, graphs, source.origin(), places)
        manifest |= {"target": target, "files": _files(folder, places, graphs, sums)}
        (folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")
    return _opened(Path(out))  # its files need not be read once more


def _capacities(config: ModelConfig, wanted: tuple[int, ...] | None) -> tuple[int, ...]:
    """The capacities to build. Raises: ExportError or ConfigError for those that the model does not allow."""
    if config.decoder is None:
        if wanted:
            raise ExportError(f"capacity={wanted[0]}: {config.name} is an encoder and keeps no cache; drop it")
        return ()
    wanted = wanted or (min(1024, config.max_position_embeddings),)
    for capacity in wanted:
        positive(capacity=capacity)
        if capacity > config.max_position_embeddings:
            raise ExportError(
                f"capacity={capacity}: the model has max_position_embeddings={config.max_position_embeddings}; "
                "give at most that many"
            )
    return wanted


def stored(
    config: ModelConfig,
    found: Parts | None,
    weights: dict[str, torch.Tensor],
    kind: ExportPrecision,
    encoder: Parts | None = None,
) -> dict[str, Stored]:
    """The place of each tensor of a build in its data file. Args: found, encoder: the parts of each stack."""
    every = [one for one in (encoder, found) if one]
    forms = {name: form for one in every for name, form in one.forms.items()}
    return layout([called for one in every for called in calls(config, one)], forms, weights, kind)


def _operators(graph: onnx.ModelProto) -> dict[str, int]:
    """How often each operator runs in one pass."""
    inside = {f.name: Counter(node.op_type for node in f.node) for f in graph.functions}
    found: Counter[str] = Counter()
    for node in graph.graph.node:
        found += inside[node.op_type]
    return dict(sorted(found.items()))


def _files(folder: Path, places: dict[str, Stored], graphs: Iterable[str], sums: dict[str, str]) -> dict[str, dict]:
    """Bytes and SHA-256 of the files with weights and the graphs. Args: sums: those that are known."""
    names = [*dict.fromkeys(place.file for place in places.values()), *graphs]
    sums = sums | file_sums(folder / name for name in names if name not in sums)
    return {name: {"bytes": (folder / name).stat().st_size, "sha256": sums[name]} for name in names}


def _manifest(config, kind: ExportPrecision, capacities, graphs: dict, weights_source: dict, places: dict) -> dict:
    step, size = bound(config)[1], kind.numpy.itemsize
    kv = {c: sum(cache_elements(step, 1, c, static=True)) * size for c in capacities}
    cross = cache_elements(step, 1, 1, 1).cross * size if config.encoder and config.decoder else None
    names = graph_names(config, capacities)
    return {
        "format": FORMAT,
        "name": config.name,
        "config": config.keys,
        "precision": kind.name,
        "activations": kind.activations,
        "group_size": kind.quantization.group_size if kind.quantization and not kind.quantization.dynamic else None,
        "capacities": list(capacities),
        "weights": weights_source,
        "opsets": {one.domain or "ai.onnx": one.version for one in graphs[names[-1]].opset_import},
        "shapes": _shapes(config) if config.decoder else None,
        "operators": _operators(graphs[names[-1]]) if config.decoder else None,
        "encoder": _encoder_facts(config, kind, graphs[ENCODER]) if config.encoder else None,
        "predicted": {
            "parameters": parameters(config),
            "weight_bytes": sum(place.nbytes for place in places.values()),
            "kv_bytes_per_sequence": {str(c): count for c, count in kv.items()},
            "cross_bytes_per_source_token": cross,
        },
        "versions": versions(PACKAGES),
    }


def _shapes(config: ModelConfig) -> dict[str, Any]:
    """The axes of a decoder's inputs and outputs."""
    found: dict[str, Any] = {
        "input_ids, position_ids": [BATCH, TOKENS],
        "write_indices": [BATCH],
        "logit_indices": [BATCH, POSITIONS],
        "logits": [BATCH, POSITIONS, config.vocab_size],
        "keys and values": [BATCH, "num_key_value_heads", "capacity", "head_dim"],
        "cache_tensors": sum(map(len, states(config, 1))),
    }
    return found | ({"source_mask": [BATCH, source_axis(config)], **cross_tensors(config)} if config.encoder else {})


def _encoder_facts(config: ModelConfig, kind: ExportPrecision, graph: onnx.ModelProto) -> dict[str, Any]:
    read = {name: axes for name, (_, axes) in inputs(config, kind.onnx).items()}
    return {"shapes": read | outputs(config), "operators": _operators(graph)}


def open_build(folder: str | Path) -> Build:
    """Open a build folder and check that every file is what the manifest says, which reads all of them.

    Raises: ExportError if a file is missing, changed, or refers to anything outside of the folder.
    """
    found = _opened(Path(folder))
    files = found.manifest["files"]
    for name, digest in file_sums(found.folder / name for name in files).items():
        if digest != files[name]["sha256"]:
            raise ExportError(f"{found.folder / name}: not the file that was built (SHA-256 differs); build it again")
    for name in graph_names(found.config, found.capacities):
        _check_references(found.folder / name, found.data)
    return found


def _opened(folder: Path) -> Build:
    """The build that a manifest tells of, whose files have the right names and sizes."""
    manifest = read_json(str(folder / MANIFEST))
    if manifest.get("format") != FORMAT:
        raise ExportError(f"{folder / MANIFEST}: format={manifest.get('format')!r}, not {FORMAT}; build it again")
    try:
        config = config_from_keys(manifest["config"], name=str(manifest["name"]))
        precision, capacities = _precision(manifest), tuple(manifest["capacities"])
        one_of("target", manifest["target"], TARGETS)
        one_of("weights.kind", manifest["weights"]["kind"], ("random", "file"))
        count = {"capacities": len(capacities)} if config.decoder else {}
        positive(**count, **{f"capacity_{c}": c for c in capacities})
        files = manifest["files"]
        for name in dict.fromkeys((*graph_names(config, capacities), *files)):
            _check_file(folder, name, files[name]["bytes"], files[name]["sha256"])
    except (KeyError, TypeError, AttributeError) as error:
        raise ExportError(f"{folder / MANIFEST}: incomplete ({error!r}); build it again") from None
    return Build(folder, config, precision, capacities, manifest)


def _precision(manifest: dict[str, Any]) -> ExportPrecision:
    if manifest["group_size"] is None and manifest["precision"] == manifest["activations"]:
        return export_precision(manifest["precision"])
    return export_precision(manifest["precision"], manifest["activations"], manifest["group_size"])


def _check_file(folder: Path, name: str, size: int, digest: str) -> None:
    """Raise ExportError unless a file of this size lies in the folder itself."""
    path = folder / name
    if type(size) is not int or type(digest) is not str:
        raise TypeError(name)
    if name != path.name:
        raise ExportError(f"{folder / MANIFEST}: files has {name!r}, not the name of a file beside it; build it again")
    if not path.is_file() or path.is_symlink():
        raise ExportError(f"{path}: missing; build it again")
    if path.stat().st_size != size:
        raise ExportError(f"{path}: not the file that was built ({size} bytes); build it again")


def _check_references(path: Path, data: Iterable[str]) -> None:
    """The files with weights are the only things that a graph may name, wherever in it a tensor stands."""
    try:
        model = onnx.load(path, load_external_data=False)
    except DecodeError as error:
        raise ExportError(f"{path}: no ONNX graph, {error}; build it again") from None
    held = [*model.graph.initializer, *_constants(model.graph.node)]
    for function in model.functions:
        held += _constants(function.node)
    for tensor in held:
        for location in (entry.value for entry in tensor.external_data if entry.key == "location"):
            if location not in data:
                raise ExportError(f"{path}: {tensor.name} lies in {location!r}; only {', '.join(data)} is read")


def _constants(nodes) -> Iterator[onnx.TensorProto]:
    """Tensors in the attributes of nodes, also of nodes in their subgraphs."""
    for node in nodes:
        for attribute in node.attribute:
            yield from (attribute.t, *attribute.tensors)
            for graph in (attribute.g, *attribute.graphs):
                yield from graph.initializer
                yield from _constants(graph.node)
