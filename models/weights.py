"""Weights from GGUF and safetensors files into a reference model, by name maps that are data. Never pickle."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath, PureWindowsPath

import torch

from archcalc.config import ModelConfig
from models import gguf_file
from models.builder import skeleton
from models.decoder_only import DecoderOnly
from models.gguf_file import WeightsError
from models.kernels import Eager
from models.progress import progress

# A file's name: ours. {i} is a layer, {e} an expert, {p} weight or bias. Several names of ours: the parts of a
# fused tensor, in this order; none: not a parameter here. Hugging Face's `model.` and `transformer.` are left out.
GGUF = {
    "token_embd.weight": "embed_tokens.weight",
    "output_norm.weight": "norm.weight",
    "output.weight": "lm_head.weight",
    "rope_freqs.weight": "",
    "blk.{i}.attn_norm.weight": "layers.{i}.self_attn_norm.weight",
    "blk.{i}.attn_q.{p}": "layers.{i}.self_attn.q_proj.{p}",
    "blk.{i}.attn_k.{p}": "layers.{i}.self_attn.k_proj.{p}",
    "blk.{i}.attn_v.{p}": "layers.{i}.self_attn.v_proj.{p}",
    "blk.{i}.attn_output.{p}": "layers.{i}.self_attn.o_proj.{p}",
    "blk.{i}.ffn_norm.weight": "layers.{i}.mlp_norm.weight",
    "blk.{i}.ffn_gate.{p}": "layers.{i}.mlp.gate_proj.{p}",
    "blk.{i}.ffn_up.{p}": "layers.{i}.mlp.up_proj.{p}",
    "blk.{i}.ffn_down.{p}": "layers.{i}.mlp.down_proj.{p}",
}
HUGGING_FACE = {
    "embed_tokens.weight": "embed_tokens.weight",
    "norm.weight": "norm.weight",
    "lm_head.weight": "lm_head.weight",
    "layers.{i}.self_attn.rotary_emb.inv_freq": "",
    "layers.{i}.input_layernorm.weight": "layers.{i}.self_attn_norm.weight",
    "layers.{i}.self_attn.q_proj.{p}": "layers.{i}.self_attn.q_proj.{p}",
    "layers.{i}.self_attn.k_proj.{p}": "layers.{i}.self_attn.k_proj.{p}",
    "layers.{i}.self_attn.v_proj.{p}": "layers.{i}.self_attn.v_proj.{p}",
    "layers.{i}.self_attn.o_proj.{p}": "layers.{i}.self_attn.o_proj.{p}",
    "layers.{i}.post_attention_layernorm.weight": "layers.{i}.mlp_norm.weight",
    "layers.{i}.mlp.gate_proj.{p}": "layers.{i}.mlp.gate_proj.{p}",
    "layers.{i}.mlp.up_proj.{p}": "layers.{i}.mlp.up_proj.{p}",
    "layers.{i}.mlp.down_proj.{p}": "layers.{i}.mlp.down_proj.{p}",
    "layers.{i}.block_sparse_moe.gate.weight": "layers.{i}.mlp.router.weight",
    "layers.{i}.block_sparse_moe.experts.{e}.w1.weight": "layers.{i}.mlp.experts.{e}.gate_proj.weight",
    "layers.{i}.block_sparse_moe.experts.{e}.w2.weight": "layers.{i}.mlp.experts.{e}.down_proj.weight",
    "layers.{i}.block_sparse_moe.experts.{e}.w3.weight": "layers.{i}.mlp.experts.{e}.up_proj.weight",
    "wte.weight": "embed_tokens.weight",
    "wpe.weight": "embed_positions.weight",
    "ln_f.{p}": "norm.{p}",
    "h.{i}.attn.bias": "",
    "h.{i}.attn.masked_bias": "",
    "h.{i}.ln_1.{p}": "layers.{i}.self_attn_norm.{p}",
    "h.{i}.attn.c_attn.{p}": "layers.{i}.self_attn.q_proj.{p} layers.{i}.self_attn.k_proj.{p} "
    "layers.{i}.self_attn.v_proj.{p}",
    "h.{i}.attn.c_proj.{p}": "layers.{i}.self_attn.o_proj.{p}",
    "h.{i}.ln_2.{p}": "layers.{i}.mlp_norm.{p}",
    "h.{i}.mlp.c_fc.{p}": "layers.{i}.mlp.up_proj.{p}",
    "h.{i}.mlp.c_proj.{p}": "layers.{i}.mlp.down_proj.{p}",
}
PLACES = {r"\{i\}": r"(?P<i>\d+)", r"\{e\}": r"(?P<e>\d+)", r"\{p\}": r"(?P<p>weight|bias)"}

Reader = Callable[[], torch.Tensor]


def load(path: str | Path, config: ModelConfig, kernels=Eager, device="cpu", dtype=torch.float32) -> DecoderOnly:
    """The model with the weights of a `.gguf` file, a `.safetensors` file, or a folder or index of the latter.

    A model is read tensor by tensor, so memory holds it once, and one tensor in fp32.
    Raises: WeightsError naming every tensor that is missing, not understood or of the wrong shape.
    """
    path = Path(path)
    if config.encoder is not None:
        raise WeightsError("encoder-decoder: there is no map of its tensor names yet; use build() for random weights")
    model = skeleton(config, kernels, dtype)
    wanted = {name: parameter.shape for name, parameter in model.named_parameters()}
    is_gguf = path.suffix == ".gguf"
    found: dict[str, torch.Tensor] = {}
    problems: list[str] = []
    for name, read in progress(gguf_file.tensors(path) if is_gguf else _safetensors(path), "read weights"):
        targets = _our_names(name, GGUF if is_gguf else HUGGING_FACE)
        if targets is None:
            problems.append(f"{name}: not understood")
        elif targets:
            tensor = read()
            tensor = _unpermute(tensor, targets[0], config) if is_gguf else _from_conv1d(tensor, name)
            for target, part in zip(targets, tensor.chunk(len(targets)), strict=True):
                problems += _place(target, part.to(device=device, dtype=dtype), wanted, found, config)
    problems += [f"{name}: missing" for name in wanted if name not in found]
    if problems:
        more = f"; and {len(problems) - 20} more" if len(problems) > 20 else ""
        raise WeightsError(f"{path}: {'; '.join(problems[:20])}{more}; is this the config of these weights?")
    model.load_state_dict(found, strict=False, assign=True)
    model.tie()
    return model.requires_grad_(False)


def _place(target: str, tensor, wanted: dict, found: dict, config: ModelConfig) -> list[str]:
    """Put one tensor into `found`; return what is wrong with it."""
    if target == "lm_head.weight" and config.tie_word_embeddings:
        target = "embed_tokens.weight"  # some files hold it twice
    if target not in wanted:
        return [f"{target}: in the file, but not in the model"]
    if tensor.shape != wanted[target]:
        return [f"{target}: shape {list(tensor.shape)}, the model needs {list(wanted[target])}"]
    if target in found and not torch.equal(found[target], tensor):
        return [f"{target}: twice in the file (or tied to lm_head.weight), with different values"]
    found[target] = tensor.contiguous()
    return []


def _our_names(name: str, names: dict[str, str]) -> list[str] | None:
    """Our names of a file's tensor; empty if it is no parameter here, None if it is not understood."""
    name = name.removeprefix("transformer.").removeprefix("model.")
    for pattern, target in names.items():
        regex = re.escape(pattern)
        for place, group in PLACES.items():
            regex = regex.replace(place, group)
        if match := re.fullmatch(regex, name):
            return target.format(**match.groupdict()).split()
    return None


def _unpermute(tensor: torch.Tensor, name: str, config: ModelConfig) -> torch.Tensor:
    """Rows of q and k from GGUF's order, where neighbours are a rotary pair, to ours, where halves are."""
    match = re.match(r"layers\.(\d+)\.self_attn\.([qk])_proj", name)
    if not match or int(match[1]) >= len(config.decoder.layers):
        return tensor
    attention = config.decoder.layers[int(match[1])].self_attn
    heads = attention.num_attention_heads if match[2] == "q" else attention.num_key_value_heads
    if attention.rotary is None or len(tensor) != heads * attention.head_dim:
        return tensor  # no pairs, or a wrong shape, which is reported later
    return tensor.unflatten(0, (heads, attention.head_dim // 2, 2)).transpose(1, 2).flatten(0, 2)


def _from_conv1d(tensor: torch.Tensor, name: str) -> torch.Tensor:
    """GPT-2's blocks hold their matrices as [in, out]."""
    return tensor.T if name.removeprefix("transformer.").startswith("h.") and tensor.ndim == 2 else tensor


def _safetensors(path: Path) -> Iterator[tuple[str, Reader]]:
    """Each tensor's name and a function that reads it, from one file or from all that an index names."""
    import safetensors

    if path.is_dir():
        index = path / "model.safetensors.index.json"
        path = index if index.exists() else path / "model.safetensors"
    for file in _shards(path) if path.suffix == ".json" else [path]:
        try:
            with safetensors.safe_open(file, "pt") as opened:
                for name in opened.keys():  # noqa: SIM118 (no mapping: it has keys() but no iterator)
                    yield name, lambda name=name, opened=opened: opened.get_tensor(name)
        except (safetensors.SafetensorError, OSError) as error:
            raise WeightsError(f"{file}: no readable safetensors file ({error}); get it again") from error


def _shards(index: Path) -> list[Path]:
    """The files an index names. They must lie beside it: the index is not to be trusted."""
    try:
        names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise WeightsError(f"{index}: no readable index ({error!r}); get it again") from error
    for name in names:
        plain = isinstance(name, str) and name == PurePosixPath(name).name == PureWindowsPath(name).name
        if not plain or not name.endswith(".safetensors"):
            raise WeightsError(f"{index}: weight_map names {name!r}; only .safetensors files beside it are read")
    return [index.parent / name for name in sorted(names)]
