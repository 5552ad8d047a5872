"""Small models that engines are built from, a GPU that is not there, and a network as the parser makes it."""

import tensorrt_rtx as trt

from export.engine_from_onnx import _parse
from export.tensorrt_package import Gpu, Log

CAPACITY = 32
ADA = Gpu("some Ada", "sm_89", "GPU-of-tests")
LLAMA = {
    "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 96, "hidden_act": "silu", "vocab_size": 61,
    "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 1e4, "tie_word_embeddings": False,
}  # fmt: skip
GPT2 = {
    "model_type": "gpt2", "n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 64, "vocab_size": 61,
    "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5, "tie_word_embeddings": True,
}  # fmt: skip
KINDS = {"llama-fp16": (LLAMA, "fp16"), "llama-fp32": (LLAMA, "fp32"), "gpt2-fp16": (GPT2, "fp16")}
FUSED = {  # cache updates, attentions, rotary embeddings, layer norms: counted by hand from the layers above
    "llama-fp16": (4, 2, 4, 0),
    "llama-fp32": (4, 2, 4, 0),
    "gpt2-fp16": (6, 3, 0, 7),
}


class Parsed:
    """A build's graph as TensorRT-RTX parses it."""

    def __init__(self, build, capacity):
        log = Log(trt)
        self.builder = trt.Builder(log.sink)
        self.network, self.parser = _parse(trt, log, self.builder, build.graph(capacity))
