"""A TensorRT engine from an exported graph: built for a named GPU, with or without one in the machine.

One adapter serves `tensorrt` (10 and later) and `tensorrt_rtx`, which have the same API. A plan `engine-C-sm_NN.plan`
lies in the build folder beside a sidecar `.json` that says what it was built from; `runtimes.tensorrt_` opens it.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import re
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from archcalc.config import ModelConfig, positive
from archcalc.files import replaced_file
from export.build import Build
from export.files import ExportError, sha256
from export.graph import WEIGHTS
from export.onnx_from_torch import BATCH, POSITIONS, TOKENS

INSTALL = 'pip install "archcalc[trt-rtx]"'
DEFAULT_CAPABILITY = "sm_89"  # Ada: what TensorRT-RTX builds for when no GPU says otherwise
TUNED_PROMPT = 512  # tokens; a longer prompt is allowed for, but kernels are chosen for this
DECODE, PREFILL = 0, 1  # optimization profiles, in the order in which they are added
COMPUTE_CAPABILITY_MAJOR, COMPUTE_CAPABILITY_MINOR = 75, 76  # CUdevice_attribute, cuda.h


@dataclass(frozen=True)
class Gpu:
    """The first CUDA device; `capability` is written as sm_NN."""

    name: str
    capability: str


def gpu() -> Gpu | None:
    """The first CUDA device, or None without a driver or a device. Source: CUDA driver API, asked without torch."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    device, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    if cuda.cuInit(0) or cuda.cuDeviceGet(ctypes.byref(device), 0):
        return None
    name = ctypes.create_string_buffer(256)
    cuda.cuDeviceGetName(name, len(name), device)
    cuda.cuDeviceGetAttribute(ctypes.byref(major), COMPUTE_CAPABILITY_MAJOR, device)
    cuda.cuDeviceGetAttribute(ctypes.byref(minor), COMPUTE_CAPABILITY_MINOR, device)
    return Gpu(name.value.decode(), f"sm_{major.value}{minor.value}")


def load_tensorrt() -> ModuleType:
    """`tensorrt` where there is a GPU and it is installed, else `tensorrt_rtx`, which builds without a GPU.

    Raises: ExportError if neither can be imported.
    """
    reasons = []
    for name in ("tensorrt", "tensorrt_rtx") if gpu() else ("tensorrt_rtx",):
        try:
            return importlib.import_module(name)
        except (ImportError, OSError, RuntimeError) as error:  # the last two: libraries that are missing or too new
            reasons.append(f"{name}: {error}")
    raise ExportError(f"backend=tensorrt: not installed ({'; '.join(reasons)}); {INSTALL}")


class Log:
    """What TensorRT said while it worked. `sink` is the logger that it wants."""

    def __init__(self, trt: ModuleType):
        self.errors: list[str] = []
        self._warnings: dict[str, list[str]] = {}
        log, severity = self, trt.ILogger.Severity

        class Sink(trt.ILogger):
            def __init__(self):
                trt.ILogger.__init__(self)

            def log(self, level, message):
                if level in (severity.ERROR, severity.INTERNAL_ERROR):
                    log.errors.append(message)
                elif level == severity.WARNING:
                    log._warnings.setdefault(message.split(": ", 1)[0], []).append(message)

        self.sink = Sink()

    def warnings(self) -> list[str]:
        """One message of each place in the source that warned: a warning a layer says nothing new."""
        more = lambda same: f" (and {len(same) - 1} alike)" if len(same) > 1 else ""  # noqa: E731
        return [same[0] + more(same) for same in self._warnings.values()]

    def reason(self) -> str:
        return " ".join((self.errors or ["no reason given"])[0].split())


def engine_path(build: Build, capacity: int, capability: str) -> Path:
    """Where the plan for this cache (tokens a sequence) and GPU (sm_NN) lies; its sidecar ends in .json."""
    return build.folder / f"engine-{capacity}-{capability}.plan"


@dataclass(frozen=True)
class EngineInfo:
    """A plan file and what its sidecar says of it."""

    path: Path
    facts: dict[str, Any]

    def describe(self) -> str:
        """One line: the file, its size, and what it was built with."""
        size = self.facts["plan_bytes"] / 10**6
        return "{}: {:.1f} MB, by {package} {version} for {compute_capability} in {seconds:.1f} s".format(
            self.path, size, **self.facts
        )


def expected_layers(config: ModelConfig) -> dict[str, int]:
    """Fused layers that a parsed graph must have, by TensorRT's name: whatever was taken apart runs slower."""
    count = len(config.decoder.layers)
    rotary = sum(block.self_attn.rotary is not None for block in config.decoder.layers)
    attention = {"ATTENTION_INPUT": count, "ATTENTION_OUTPUT": count}
    return attention | {"KV_CACHE_UPDATE": 2 * count, "ROTARY_EMBEDDING": 2 * rotary}


def check_layers(config: ModelConfig, parsed: Counter[str]) -> None:
    """Raise ExportError unless the parser kept every cache update, attention and rotary embedding whole."""
    for kind, count in expected_layers(config).items():
        if parsed[kind] != count:
            raise ExportError(
                f"{config.name}: TensorRT parsed {parsed[kind]} {kind} layers, not {count}; the graph was taken apart: "
                "use the TensorRT version that archcalc was tested with"
            )


def profiles(capacity: int, max_batch: int, max_prompt: int) -> list[dict[str, tuple[int, int, int]]]:
    """(least, tuned for, most) of each named axis: decoding one token, and a prompt of 1..max_prompt tokens.

    Raises: ExportError or ConfigError for a size that no cache of `capacity` tokens allows.
    """
    positive(max_batch=max_batch, max_prompt=max_prompt)
    if max_prompt > capacity:
        raise ExportError(f"max_prompt={max_prompt}: more than the cache's capacity={capacity}; give at most that many")
    batch, one = (1, 1, max_batch), (1, 1, 1)
    prompt = (1, min(max_prompt, TUNED_PROMPT), max_prompt)
    return [{BATCH: batch, TOKENS: one, POSITIONS: one}, {BATCH: batch, TOKENS: prompt, POSITIONS: (1, 1, max_prompt)}]


def _target(trt: ModuleType, wanted: str | None, device: Gpu | None) -> tuple[str, Any]:
    """The capability's name and, where the package can build for another GPU, its enumerator."""
    if not hasattr(trt, "ComputeCapability"):  # the full package builds for the GPU that it runs on
        if device is None or wanted not in (None, device.capability):
            here = device.capability if device else "no GPU"
            raise ExportError(f"compute_capability={wanted}: {trt.__name__} builds for this machine, {here}; {INSTALL}")
        return device.capability, None
    known = {
        f"sm_{member[2:]}": target
        for member, target in trt.ComputeCapability.__members__.items()
        if re.fullmatch(r"SM\d+", member)
    }
    name = wanted or (device.capability if device else DEFAULT_CAPABILITY)
    if name not in known:
        package = f"{trt.__name__} {trt.__version__}"
        raise ExportError(f"compute_capability={name}: {package} does not know it; use one of {', '.join(known)}")
    return name, trt.ComputeCapability.CURRENT if device and wanted is None else known[name]


def _parse(trt: ModuleType, log: Log, builder, graph: Path):
    """(network, parser): the parser owns the weights that the network refers to, so it must outlive the build."""
    strongly_typed = trt.NetworkDefinitionCreationFlag.__members__.get("STRONGLY_TYPED")  # 11 knows nothing else
    network = builder.create_network(0 if strongly_typed is None else 1 << int(strongly_typed))
    parser = trt.OnnxParser(network, log.sink)
    if not parser.parse_from_file(str(graph)):
        error = parser.get_error(0) if parser.num_errors else None
        where = f"node {error.node_name()!r} ({error.node_operator()}): {error.desc()}" if error else log.reason()
        raise ExportError(f"{graph}: {trt.__name__} {trt.__version__} cannot parse it, {where}; use ONNX Runtime")
    return network, parser


def _allow_decomposition(trt: ModuleType, network) -> None:
    """Let attention that has no kernel of its own (every fp32 one) run as products and a softmax."""
    for index in range(network.num_layers):
        layer = network.get_layer(index)
        if layer.type == trt.LayerType.ATTENTION_INPUT:
            layer.__class__ = trt.IAttentionInputLayer  # the binding hands out ILayer; this is its way to narrow it
            layer.attention.decomposable = True


def _settings(trt: ModuleType, builder, target, workspace_bytes: int | None, builder_optimization_level: int | None):
    """The builder's configuration: the GPU to build for, its limits, and true fp32."""
    settings = builder.create_builder_config()
    settings.clear_flag(trt.BuilderFlag.TF32)  # on by default, and rounds the factors of fp32 products to 11 bits
    if target is not None:
        settings.num_compute_capabilities = 1
        settings.set_compute_capability(target, 0)
    if workspace_bytes is not None:
        settings.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, workspace_bytes)
    if builder_optimization_level is not None:
        settings.builder_optimization_level = builder_optimization_level
    return settings


def _profile(builder, network, axes: dict[str, tuple[int, int, int]]):
    """The range of every input's shape, from the ranges of its named axes."""
    profile = builder.create_optimization_profile()
    for tensor in (network.get_input(index) for index in range(network.num_inputs)):
        ranges = [
            axes[tensor.get_dimension_name(axis)] if size < 0 else (size, size, size)
            for axis, size in enumerate(tensor.shape)
        ]
        profile.set_shape(tensor.name, *zip(*ranges, strict=True))
    return profile


def build_engine(
    build: Build,
    capacity: int,
    *,
    compute_capability: str | None = None,
    max_batch: int = 4,
    max_prompt: int | None = None,
    workspace_bytes: int | None = None,
    builder_optimization_level: int | None = None,
    decompose_attention: bool | None = None,
) -> EngineInfo:
    """Build the plan of the graph with this capacity (tokens a sequence) into the build folder.

    Args:
        compute_capability: sm_NN; by default this machine's GPU, or sm_89 without one.
        max_batch: sequences. max_prompt: tokens a pass; by default as many as the cache holds.
        workspace_bytes, builder_optimization_level (0, a fast build, to 5): by default the package's own choice.
        decompose_attention: allow attention without a kernel; by default in fp32 alone, which has none.
    Raises: ExportError if it cannot be parsed or built; nothing is written then.
    """
    if capacity not in build.capacities:
        raise ExportError(f"capacity={capacity}: not in the build; use one of {', '.join(map(str, build.capacities))}")
    trt, device = load_tensorrt(), gpu()
    capability, target = _target(trt, compute_capability, device)
    ranges = profiles(capacity, max_batch, capacity if max_prompt is None else max_prompt)
    decompose = build.precision.name == "fp32" if decompose_attention is None else decompose_attention
    started, log = time.perf_counter(), Log(trt)
    settings = (target, workspace_bytes, builder_optimization_level)
    plan, layers = _compile(trt, log, build, capacity, settings, ranges, decompose)
    facts = origin(build, capacity, trt) | {
        "compute_capability": capability,
        "gpu": device.name if device and device.capability == capability else None,
        "profiles": dict(zip(("decode", "prefill"), ranges, strict=True)),
        "attention_may_decompose": decompose,
        "layers": dict(sorted(layers.items())),
        "warnings": log.warnings(),
        "seconds": round(time.perf_counter() - started, 3),
    }
    return _write(engine_path(build, capacity, capability), plan, facts)


def _compile(trt: ModuleType, log: Log, build: Build, capacity: int, settings: tuple, ranges: list, decompose: bool):
    """(plan, parsed layers by type). Raises: ExportError for a graph that was not parsed, kept whole or built."""
    builder = trt.Builder(log.sink)
    config = _settings(trt, builder, *settings)
    network, parser = _parse(trt, log, builder, build.graph(capacity))
    layers = Counter(network.get_layer(index).type.name for index in range(network.num_layers))
    check_layers(build.config, layers)
    if decompose:
        _allow_decomposition(trt, network)
    for axes in ranges:
        config.add_optimization_profile(_profile(builder, network, axes))
    plan = builder.build_serialized_network(network, config)
    del parser  # it owns the weights that the network refers to: not before the build
    if plan is None:
        raise ExportError(f"{build.graph(capacity)}: {trt.__name__} cannot build it; {log.reason()}")
    return plan, layers


def origin(build: Build, capacity: int, trt: ModuleType) -> dict[str, Any]:
    """What an engine depends on; it is opened only where each of these is the same."""
    files = build.manifest["files"]
    return {
        "package": trt.__name__,
        "version": trt.__version__,
        "config": build.config.keys,
        "precision": build.precision.name,
        "capacity": capacity,
        "graph_sha256": sha256(build.graph(capacity)),
        "weights_sha256": files[WEIGHTS]["sha256"],
    }


def _write(path: Path, plan, facts: dict[str, Any]) -> EngineInfo:
    """Plan first, sidecar second: a kill between them leaves a pair that does not agree, and is refused."""
    with replaced_file(path) as temporary:
        temporary.write_bytes(plan)
        facts |= {"plan_bytes": temporary.stat().st_size, "plan_sha256": sha256(temporary)}
    with replaced_file(path.with_suffix(".json")) as temporary:
        temporary.write_text(json.dumps(facts, indent=2) + "\n")
    return EngineInfo(path, json.loads(json.dumps(facts)))
