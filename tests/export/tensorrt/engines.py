"""Small models that engines are built from, a network as the parser makes it, and a GPU that is not there."""

import contextlib
import ctypes

import numpy as np
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
T5 = {
    "model_type": "t5", "vocab_size": 79, "d_model": 32, "d_kv": 16, "d_ff": 40, "num_layers": 3,
    "num_decoder_layers": 2, "num_heads": 4, "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 20, "decoder_start_token_id": 0, "feed_forward_proj": "relu",
}  # fmt: skip
BERT = {
    "model_type": "bert", "architectures": ["BertForMaskedLM"], "vocab_size": 73, "hidden_size": 32,
    "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 40, "hidden_act": "gelu",
    "max_position_embeddings": 64, "type_vocab_size": 3, "layer_norm_eps": 1e-12,
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


NUMPY = {
    "tensor(int64)": np.int64,
    "tensor(bool)": np.bool_,
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
}


class CpuStream:
    device, handle = "cpu", 7

    def current(self):
        return contextlib.nullcontext()

    def timed(self, enqueue):
        return enqueue(self.handle), 0.25


class CpuContext:
    """An execution context that finds its tensors by address, as TensorRT does, and computes with ONNX Runtime."""

    def __init__(self, session):
        self.runtime = session
        self.active_optimization_profile, self.shapes, self.addresses, self.binds = 0, {}, {}, 0

    def set_optimization_profile_async(self, index, stream):
        assert stream == CpuStream.handle
        self.active_optimization_profile, self.shapes = index, {}

    def set_input_shape(self, name, shape):
        self.shapes[name] = shape
        return len(shape) > 0

    def set_tensor_address(self, name, address):
        self.binds += name == self.runtime.get_outputs()[0].name
        self.addresses[name] = address

    def _at(self, name, shape, dtype):
        raw = (ctypes.c_byte * (int(np.prod(shape)) * np.dtype(dtype).itemsize)).from_address(self.addresses[name])
        return np.frombuffer(raw, dtype).reshape(shape)

    def execute_async_v3(self, stream):
        named = {i.name: NUMPY[i.type] for i in self.runtime.get_inputs()}
        one_token = "logit_indices" not in named or self.shapes["input_ids"][1] == 1  # an encoder has one profile
        assert (self.active_optimization_profile == 0) == one_token
        inputs = {name: self._at(name, self.shapes[name], kind).copy() for name, kind in named.items()}
        for output, value in zip(self.runtime.get_outputs(), self.runtime.run(None, inputs), strict=True):
            if output.name.startswith("present"):
                assert self.addresses[output.name] == self.addresses[output.name.replace("present", "past_key_values")]
            self._at(output.name, value.shape, value.dtype)[...] = value
        return True
