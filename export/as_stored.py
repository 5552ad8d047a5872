"""The model that a build stands for: with the numbers that quantized weights are, for PyTorch to compute with."""

from __future__ import annotations

import re

import onnx
import torch

from export.build import Build, graph_names
from export.quantize import Integers, dequantize, quantize
from models.names.rules import alternatives

INTEGERS = re.compile(r"(.+)\.int([48])")


@torch.no_grad()
def give_stored_numbers(model: torch.nn.Module, build: Build) -> None:
    """Round the model's weights as the build has them, in place; a tied matrix that the head has as integers is untied.

    So a comparison sees the graph's mistakes, not the distance between numbers before and after quantization.
    """
    scheme = build.precision.quantization
    if scheme is None:
        return
    paths = [build.folder / name for name in graph_names(build.config, build.capacities)]
    graphs = [onnx.load(path, load_external_data=False).graph for path in paths]
    for name in {tensor.name for graph in graphs for tensor in graph.initializer}:
        if match := INTEGERS.fullmatch(name):
            form = Integers(int(match[2]), None if scheme.dynamic else scheme.group_size)
            for weight in alternatives(match[1]):
                _round(model, weight, form, build)


def _round(model: torch.nn.Module, weight: str, form: Integers, build: Build) -> None:
    whole_IO, scale = quantize(model.get_parameter(weight).T.float().numpy(), form)
    numbers_IO = dequantize(whole_IO, scale.astype(build.precision.numpy), form)
    module = model.get_submodule(weight.rpartition(".")[0])
    module = model.lm_head if isinstance(module, torch.nn.Embedding) else module  # the embedding itself is stored whole
    module.weight = torch.nn.Parameter(torch.from_numpy(numbers_IO.T.copy()), requires_grad=False)
