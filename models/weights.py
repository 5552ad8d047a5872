"""Weights from safetensors and GGUF files, or from any named tensors, into a reference model. Never pickle."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from pathlib import Path, PurePosixPath, PureWindowsPath

import torch

from archcalc.config import Block, ModelConfig
from archcalc.errors import one_of
from archcalc.hf import config_from_keys, load_config
from models import gguf_file
from models.builder import skeleton
from models.gguf_file import WeightsError
from models.kernels import Eager
from models.layouts import LAYOUTS
from models.names import HUGGING_FACE, gguf_tables, rules
from models.progress import progress
from models.supported import check_computed

Reader = Callable[[], torch.Tensor]
Named = Iterable[tuple[str, Reader]]

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
LARGEST_INDEX = 100_000_000  # bytes; that of a model of a trillion parameters has 20 million
TYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
SHOWN = 20  # problems in one message
# A tensor that a tied model does not own: those that may own it.
OWNERS = {
    "lm_head.weight": ("embed_tokens.weight", "decoder.embed_tokens.weight"),
    "encoder.embed_tokens.weight": ("embed_tokens.weight",),
    "decoder.embed_tokens.weight": ("embed_tokens.weight",),
}


def load(path: str | Path, config: ModelConfig | None = None, kernels=Eager, device="cpu", dtype=torch.float32):
    """The model with the weights of a file, for inference.

    Args:
        path: a folder with `config.json` and `model.safetensors` (or an index and its shards), one of these files,
            or a `.gguf` file.
        config: None: read from the folder, or from the metadata of the GGUF file.
        dtype: what the weights are cast to. A tensor is read at a time, so memory holds the model and one tensor.
    Raises: WeightsError naming every tensor that is missing, not understood or of another shape.
    """
    path = Path(path)
    if path.suffix == ".gguf":
        table = gguf_tables.TABLES[gguf_file.architecture(path)]
        config = config or config_from_keys(gguf_file.gguf_config(path), name=path.stem)
        return _filled(config, gguf_file.tensors(path), table, path, kernels, device, dtype)
    files = _safetensors_files(path)
    config = config or load_config(path if path.is_dir() else path.parent)
    return _filled(config, _safetensors(files), _table(config), path, kernels, device, dtype)


def assign(config: ModelConfig, tensors: Named, kernels=Eager, device="cpu", dtype=torch.float32):
    """The model with the given tensors: pairs of a Hugging Face checkpoint's name and a function that reads it.

    The config must have been read from a `config.json`, whose `model_type` says what names mean.
    Raises: WeightsError as `load`.
    """
    return _filled(config, tensors, _table(config), "tensors", kernels, device, dtype)


def _table(config: ModelConfig) -> rules.Table:
    kind = (config.keys or {}).get("model_type")
    one_of("model_type", kind, HUGGING_FACE)
    return HUGGING_FACE[kind]


def _filled(config: ModelConfig, tensors: Named, table: rules.Table, source, kernels, device, dtype):
    check_computed(config)
    model = skeleton(config, kernels, dtype)
    owned = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    stored = model.state_dict().keys()  # not the buffers that are computed
    found = collect(config, {n: t for n, t in owned.items() if n in stored}, tensors, table, source, device)
    model.load_state_dict(found, strict=False, assign=True)
    model.tie()
    return model.requires_grad_(False)


def collect(
    config: ModelConfig,
    wanted: dict[str, torch.Tensor],
    tensors: Named,
    table: rules.Table,
    source="tensors",
    device="cpu",
) -> dict[str, torch.Tensor]:
    """Our tensors by name, each contiguous and of its own memory.

    Args:
        wanted: a tensor, on any device, of the name, shape and type of each that the model owns.
        source: what an error names.
    """
    collected = _Collected(config, wanted, table, device)
    for name, read in progress(tensors, "read weights"):
        collected.take(_shown(name), read)
    problems = collected.problems + [f"{name}: missing" for name in wanted if name not in collected.found]
    if problems:
        more = f"; and {len(problems) - SHOWN} more" if len(problems) > SHOWN else ""
        raise WeightsError(f"{source}: {'; '.join(problems[:SHOWN])}{more}; is this the config of these weights?")
    return collected.found


class _Collected:
    """Our tensors as they come in, and what is wrong with those that came."""

    def __init__(self, config: ModelConfig, wanted: dict[str, torch.Tensor], table: rules.Table, device):
        self.config, self.wanted, self.device = config, wanted, device
        self.rules = _compiled(tuple(table.items()))
        self.found: dict[str, torch.Tensor] = {}
        self.problems: list[str] = []

    def take(self, name: str, read: Reader) -> None:
        """Read one tensor of the file and keep the parts that are ours."""
        rule = self._rule(name)
        if rule is None:
            self.problems.append(f"{name}: not understood")
            return
        target, layout = rule
        targets = self._targets(target, layout)
        if not targets:
            return
        try:
            tensor = read()
            if tensor.dtype not in TYPES:
                raise WeightsError(f"{name}: type {tensor.dtype} cannot be read; use fp32, fp16 or bf16")
            for one, part in zip(targets, self._parts(name, tensor, targets[0], layout), strict=True):
                self._place(one, part)
        except WeightsError as error:
            self.problems.append(str(error))

    def _rule(self, name: str) -> tuple[str, str] | None:
        """Our name of a file's tensor and its layout; None if it is not understood."""
        for prefix in rules.PREFIXES:
            if name.startswith(prefix):
                name = name.removeprefix(prefix)
                break
        for old, new in rules.OLD_ENDS.items():
            name = name.removesuffix(old) + new if name.endswith(old) else name
        if self._of_a_predictor(name):
            return rules.NOTHING, "same"
        for pattern, target, layout in self.rules:
            if match := pattern.fullmatch(name):
                return target.format(**match.groupdict()), layout
        return None

    def _of_a_predictor(self, name: str) -> bool:
        """Whether it belongs to a layer that predicts further tokens, which the model leaves out."""
        match = re.match(r"mtp\.|layers\.(\d+)\.", name)
        if not match or not self.config.left_out:
            return False
        depth = len(self.config.decoder.layers) if self.config.decoder else 0
        extra = (self.config.keys or {}).get("num_nextn_predict_layers") or 0
        return match[1] is None or depth <= int(match[1]) < depth + extra

    def _targets(self, target: str, layout: str) -> list[str]:
        """The names that a target stands for; those that the model has not are kept where that is an error."""
        found = _expanded(target)
        if any("*" in one for one in found):
            experts = getattr(getattr(self._block(target), "mlp", None), "num_local_experts", 0)
            found = [one.replace("*", str(e)) for e in range(experts) for one in found] or found
        found = [self._owner(one) for one in found]
        if layout == rules.EITHER:
            return [one for one in found if one in self.wanted] or found[:1]
        return [one for one in found if one in self.wanted] if layout == rules.SPARE else found

    def _owner(self, name: str) -> str:
        """The name under which the model owns a tensor that may be tied to another one."""
        if name in self.wanted or (name == "lm_head.weight" and not self.config.tie_word_embeddings):
            return name
        return next((owner for owner in OWNERS.get(name, ()) if owner in self.wanted), name)

    def _block(self, name: str) -> Block | None:
        """The block that a tensor of ours belongs to."""
        match = re.match(r"(?:(encoder|decoder)\.)?layers\.(\d+)\.", name)
        if not match:
            return None
        stack = getattr(self.config, match[1]) if match[1] else self.config.decoder or self.config.encoder
        index = int(match[2])
        return stack.layers[index] if stack and index < len(stack.layers) else None

    def _parts(self, name: str, tensor: torch.Tensor, target: str, layout: str):
        if layout in (rules.EITHER, rules.SPARE, "same"):
            return (tensor,)
        try:
            return LAYOUTS[layout](tensor, self._block(target), self.config.keys or {})
        except (RuntimeError, AttributeError, ValueError) as error:  # another shape, or a block of another kind
            raise WeightsError(f"{name}: shape {list(tensor.shape)} does not fit the model ({layout})") from error

    def _place(self, name: str, part: torch.Tensor) -> None:
        """Copy one part to where it belongs."""
        if name not in self.wanted:
            raise WeightsError(f"{name}: in the file, but not in the model")
        wanted = self.wanted[name]
        shape = _merged(part.shape, wanted.ndim)
        if shape != wanted.shape:
            raise WeightsError(f"{name}: shape {list(shape)}, the model needs {list(wanted.shape)}")
        if name not in self.found:
            self.found[name] = torch.empty(shape, dtype=wanted.dtype, device=self.device)
            self.found[name].view(part.shape).copy_(part)
        elif not torch.equal(self.found[name].view(part.shape), part.to(self.device, wanted.dtype)):
            raise WeightsError(f"{name}: twice in the file (or tied to lm_head.weight), with different values")


def _shown(name: str) -> str:
    """A file's name, which must not break the line of an error; no name that is understood changes."""
    return (name if name.isprintable() else repr(name))[:200]


def _merged(shape: torch.Size, ndim: int) -> torch.Size:
    """A shape of at most `ndim` axes: the first ones become one."""
    spare = len(shape) - ndim + 1
    return torch.Size((math.prod(shape[:spare]), *shape[spare:])) if spare > 1 else shape


def _expanded(target: str) -> list[str]:
    """`a.(x|y).b` as [a.x.b, a.y.b]; an empty list for NOTHING."""
    before, choice, after = re.fullmatch(r"([^(]*)(?:\((.*)\))?(.*)", target).groups()
    return [before + one + after for one in choice.split("|")] if choice else [target] if target else []


@lru_cache(maxsize=32)
def _compiled(pairs: tuple) -> list[tuple[re.Pattern, str, str]]:
    """Rules of a table as (pattern of the file's name, our name, layout)."""
    found = []
    for name, rule in pairs:
        target, layout = (rule, "same") if isinstance(rule, str) else rule
        regex = re.sub(r"\\\{(\w+)\\\}", lambda place: f"(?P<{place[1]}>{rules.PLACES[place[1]]})", re.escape(name))
        found.append((re.compile(regex), target, layout))
    return found


def _safetensors_files(path: Path) -> list[Path]:
    """The files that a folder, an index or a file stands for."""
    if path.is_dir():
        path = next((path / name for name in (INDEX, SINGLE) if (path / name).exists()), path)
    if path.is_dir():
        pickled = sorted(file.name for suffix in ("*.bin", "*.pt", "*.pth") for file in path.glob(suffix))
        if pickled:
            raise WeightsError(
                f"{path}: has {pickled[0]}, a pickle, which is a program and never read; save it as {SINGLE}"
            )
        raise WeightsError(f"{path}: has no {SINGLE} and no {INDEX}; give the folder of a model")
    if path.suffix not in (".json", ".safetensors"):
        raise WeightsError(f"{path}: neither .safetensors nor .gguf; other files are not read")
    return _shards(path) if path.suffix == ".json" else [path]


def _safetensors(files: list[Path]) -> Iterator[tuple[str, Reader]]:
    """Each tensor's name and a function that maps it into memory."""
    import safetensors

    for file in files:
        if not file.is_file():
            raise WeightsError(f"{file}: no such file; get it again")
        try:
            with safetensors.safe_open(file, "pt") as opened:
                for name in opened.keys():  # noqa: SIM118 (no mapping: it has keys() but no iterator)
                    yield name, lambda name=name, opened=opened: opened.get_tensor(name)
        except (safetensors.SafetensorError, OSError) as error:
            raise WeightsError(f"{file}: no readable safetensors file ({error}); get it again") from error


def _shards(index: Path) -> list[Path]:
    """The files an index names. They must lie beside it: the index is not to be trusted."""
    try:
        if index.stat().st_size > LARGEST_INDEX:
            raise ValueError(f"larger than {LARGEST_INDEX} bytes")
        found = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise WeightsError(f"{index}: no readable index ({error!r}); get it again") from error
    for name in found:
        plain = isinstance(name, str) and name == PurePosixPath(name).name == PureWindowsPath(name).name
        if not plain or not name.endswith(".safetensors"):
            raise WeightsError(f"{index}: weight_map names {name!r}; only .safetensors files beside it are read")
    return [index.parent / name for name in sorted(found)]
