"""Weights from safetensors and GGUF files, or from any named tensors, into a reference model. Never pickle."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import NamedTuple

import torch

from archcalc.config import Block, ModelConfig
from archcalc.errors import one_of
from archcalc.hf import config_from_keys, load_config
from models import gguf_file, safetensors_file
from models.builder import skeleton
from models.gguf_file import WeightsError
from models.kernels import Eager
from models.layouts import LAYOUTS
from models.names import HUGGING_FACE, gguf_tables, rules
from models.progress import progress
from models.supported import check_computed

Reader = Callable[[], torch.Tensor]
Named = Iterable[tuple[str, Reader]]

TYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
SHOWN = 20  # problems in one message
ROWS = 1024  # of two tensors that are compared at once
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
    found = checkpoint(path, config)
    return _filled(found.config, found.tensors(), found.table, path, kernels, device, dtype)


class Part(NamedTuple):
    """A tensor of ours: in the file's type, maybe the file's memory.

    Args:
        origin, whole: the file's tensor that it is, or is taken from.
    """

    name: str
    tensor: torch.Tensor
    origin: str
    whole: torch.Tensor


@dataclass(frozen=True)
class Checkpoint:
    """Weights in files, for one model.

    Args:
        tensors, outlines: give the name of each tensor in the files, and a function that reads it; or one of its
            shape alone, on the meta device.
    """

    path: Path
    config: ModelConfig
    table: rules.Table
    tensors: Callable[[], Named]
    outlines: Callable[[], Named]

    def parts(self) -> Iterator[Part]:
        """The model's tensors, one at a time; see `stream`."""
        return stream(self.config, self._wanted(), self.tensors(), self.table, self.path)

    def outline(self) -> Iterator[Part]:
        """The same names in the same order, with tensors that need have no numbers: for what names and shapes tell."""
        return stream(self.config, self._wanted(), self.outlines(), self.table, self.path)

    def _wanted(self) -> dict[str, torch.Tensor]:
        check_computed(self.config)
        return _owned(skeleton(self.config))


def checkpoint(path: str | Path, config: ModelConfig | None = None) -> Checkpoint:
    """The weights of a file or folder; arguments as `load`."""
    path = Path(path)
    if path.suffix == ".gguf":
        table = gguf_tables.TABLES[gguf_file.architecture(path)]
        config = config or config_from_keys(gguf_file.gguf_config(path), name=path.stem)
        return Checkpoint(path, config, table, partial(gguf_file.tensors, path), partial(gguf_file.outlines, path))
    files = safetensors_file.files(path)
    config = config or load_config(path if path.is_dir() else path.parent)
    mapped = partial(safetensors_file.tensors, files)  # nothing is read before it is used
    return Checkpoint(path, config, _table(config), mapped, mapped)


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
    found = collect(config, _owned(model), tensors, table, source, device)
    model.load_state_dict(found, strict=False, assign=True)
    model.tie()
    return model.requires_grad_(False)


def _owned(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """What a file must have: the parameters, each once, and the buffers, but for those that are computed."""
    stored = model.state_dict().keys()
    return {n: t for n, t in (*model.named_parameters(), *model.named_buffers()) if n in stored}


def collect(
    config: ModelConfig,
    wanted: dict[str, torch.Tensor],
    tensors: Named,
    table: rules.Table,
    source="tensors",
    device="cpu",
) -> dict[str, torch.Tensor]:
    """Our tensors by name, each contiguous and of its own memory; arguments as `stream`."""
    found = {}
    for name, tensor, *_ in progress(stream(config, wanted, tensors, table, source), "read weights"):
        found[name] = torch.empty(tensor.shape, dtype=wanted[name].dtype, device=device).copy_(tensor)
    return found


def stream(
    config: ModelConfig, wanted: dict[str, torch.Tensor], tensors: Named, table: rules.Table, source="tensors"
) -> Iterator[Part]:
    """What the model owns, each tensor once, as they come.

    Args:
        wanted: a tensor, on any device, of the name, shape and type of each that the model owns.
        source: what an error names.
    Raises: WeightsError naming all that is wrong, after the last tensor: what came before is then of no use.
    """
    ours, problems = _Ours(config, wanted, table), []
    first: dict[str, tuple[str, Reader]] = {}  # the file's tensor that each of ours came from
    for name, read in tensors:
        name = _shown(name)
        try:
            for part in ours.parts(name, read):
                if part.name not in first:
                    first[part.name] = name, read
                    yield part
                elif not part.tensor.is_meta:
                    before = next(p for p in ours.parts(*first[part.name]) if p.name == part.name)
                    _check_same(part, before, wanted[part.name].dtype)
        except WeightsError as error:
            problems.append(str(error))
    problems += [f"{name}: missing" for name in wanted if name not in first]
    if problems:
        more = f"; and {len(problems) - SHOWN} more" if len(problems) > SHOWN else ""
        raise WeightsError(f"{source}: {'; '.join(problems[:SHOWN])}{more}; is this the config of these weights?")


def _check_same(one: Part, other: Part, dtype: torch.dtype) -> None:
    """Raise WeightsError unless two tensors of one name are equal in the model's type."""
    for rows, twins in zip(one.tensor.split(ROWS), other.tensor.split(ROWS), strict=True):
        if not torch.equal(rows.to(dtype), twins.to(dtype)):
            raise WeightsError(f"{one.name}: twice in the file (or tied to lm_head.weight), with different values")


class _Ours:
    """What a model calls the tensors of a file, and how it lays them out."""

    def __init__(self, config: ModelConfig, wanted: dict[str, torch.Tensor], table: rules.Table):
        self.config, self.wanted = config, wanted
        self.rules = _compiled(tuple(table.items()))

    def parts(self, name: str, read: Reader) -> Iterator[Part]:
        """What a tensor of the file holds; nothing of one that is left out.

        Raises: WeightsError for a tensor that is not understood, or does not fit.
        """
        rule = self._rule(name)
        if rule is None:
            raise WeightsError(f"{name}: not understood")
        target, layout = rule
        targets = self._targets(target, layout)
        if not targets:
            return
        tensor = read()
        if tensor.dtype not in TYPES:
            raise WeightsError(f"{name}: type {tensor.dtype} cannot be read; use fp32, fp16 or bf16")
        for one, part in zip(targets, self._laid_out(name, tensor, targets[0], layout), strict=True):
            yield Part(one, self._fitting(one, part), name, tensor)

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
        found = rules.alternatives(target)
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

    def _laid_out(self, name: str, tensor: torch.Tensor, target: str, layout: str):
        if layout in (rules.EITHER, rules.SPARE, "same"):
            return (tensor,)
        try:
            return LAYOUTS[layout](tensor, self._block(target), self.config.keys or {})
        except (RuntimeError, AttributeError, ValueError) as error:  # another shape, or a block of another kind
            raise WeightsError(f"{name}: shape {list(tensor.shape)} does not fit the model ({layout})") from error

    def _fitting(self, name: str, part: torch.Tensor) -> torch.Tensor:
        """One part in the model's shape."""
        if name not in self.wanted:
            raise WeightsError(f"{name}: in the file, but not in the model")
        wanted, shape = self.wanted[name].shape, _merged(part.shape, self.wanted[name].ndim)
        if shape != wanted:
            raise WeightsError(f"{name}: shape {list(shape)}, the model needs {list(wanted)}")
        return part.reshape(shape)


def _shown(name: str) -> str:
    """A file's name, which must not break the line of an error; no name that is understood changes."""
    return (name if name.isprintable() else repr(name))[:200]


def _merged(shape: torch.Size, ndim: int) -> torch.Size:
    """A shape of at most `ndim` axes: the first ones become one."""
    spare = len(shape) - ndim + 1
    return torch.Size((math.prod(shape[:spare]), *shape[spare:])) if spare > 1 else shape


@lru_cache(maxsize=32)
def _compiled(pairs: tuple) -> list[tuple[re.Pattern, str, str]]:
    """Rules of a table as (pattern of the file's name, our name, layout)."""
    found = []
    for name, rule in pairs:
        target, layout = (rule, "same") if isinstance(rule, str) else rule
        regex = re.sub(r"\\\{(\w+)\\\}", lambda place: f"(?P<{place[1]}>{rules.PLACES[place[1]]})", re.escape(name))
        found.append((re.compile(regex), target, layout))
    return found
