"""A tiny Llama in the files of others, written the way back from the maps that read them."""

import gguf
import torch
from safetensors.torch import save_file

import models
from archcalc.hf import config_from_keys
from models.names import gguf_tables, llama_like
from models.parity.checkpoints import CHECKPOINTS, enliven

KEYS = CHECKPOINTS["llama"][1] | {"model_type": "llama", "rms_norm_eps": 1e-5, "rope_theta": 1e4}
LLAMA = config_from_keys(KEYS)


def changed(**keys):
    """The same config with other keys."""
    return config_from_keys(KEYS | keys)


def lively(config=LLAMA):
    model = models.build(config)
    enliven(model.requires_grad_(True))
    return model.requires_grad_(False)


def renamed(model, table) -> dict[str, torch.Tensor]:
    """A model's tensors under a file's names, by those rules of a table that rename and regroup nothing else."""
    theirs = {}
    for name, rule in table.items():
        target = rule if isinstance(rule, str) else rule[0]
        for i in range(len(model.config.decoder.layers)):
            for p in ("weight", "bias"):
                for qkvo in "qkvo":
                    for ffn in ("gate", "up", "down"):
                        places = {"i": i, "p": p, "qkvo": qkvo, "ffn": ffn, "e": 0, "stack": "decoder"}
                        theirs.setdefault(target.format(**places), name.format(**places))
    return {theirs[name]: tensor.contiguous() for name, tensor in model.named_parameters()}


def write_safetensors(path, model, **changes):
    """A `.safetensors` file; a change is another tensor, None for none."""
    tensors = {f"model.{name}": tensor for name, tensor in renamed(model, llama_like.LLAMA).items()}
    tensors["lm_head.weight"] = tensors.pop("model.lm_head.weight", None)
    tensors |= changes
    save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, path)
    return path


def in_turns(tensor: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows in GGUF's order of llama: row 2j of a head is our row j, row 2j + 1 our row j + H/2."""
    rows = []
    for head in tensor.chunk(heads):
        half = len(head) // 2
        for j in range(half):
            rows += [head[j], head[j + half]]
    return torch.stack(rows)


SIZES = {
    "vocab_size": KEYS["vocab_size"], "embedding_length": 32, "feed_forward_length": 40, "block_count": 2,
    "attention.head_count": 4, "attention.head_count_kv": 2, "context_length": 64, "attention.key_length": 16,
}  # fmt: skip
NUMBERS = {"attention.layer_norm_rms_epsilon": 1e-5, "rope.freq_base": 1e4}


def write_gguf(path, tensors, kind="F32", architecture="llama", sizes=SIZES, numbers=NUMBERS):
    """A `.gguf` file of matrices of one type (where its blocks divide their rows) and vectors in fp32."""
    writer = gguf.GGUFWriter(path, architecture)
    for name, value in sizes.items():
        if value is not None:
            writer.add_uint32(f"{architecture}.{name}", value)
    for name, value in numbers.items():
        writer.add_float32(f"{architecture}.{name}", value)
    qtype = gguf.GGMLQuantizationType[kind]
    block = gguf.GGML_QUANT_SIZES[qtype][0]
    for name, tensor in tensors.items():
        own = qtype if tensor.ndim > 1 and tensor.shape[-1] % block == 0 else gguf.GGMLQuantizationType.F32
        writer.add_tensor(name, gguf.quants.quantize(tensor.numpy(), own), raw_dtype=own)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def llama_gguf(model) -> dict[str, torch.Tensor]:
    """The tensors of a llama in GGUF: rows of q and k have neighbours as rotary pairs."""
    tensors = renamed(model, gguf_tables.LLAMA)
    heads = {"attn_q": 4, "attn_k": 2}
    for name, tensor in tensors.items():
        if (kind := name.split(".")[-2]) in heads:
            tensors[name] = in_turns(tensor, heads[kind])
    return tensors
