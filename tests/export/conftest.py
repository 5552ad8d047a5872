"""One small build for all tests of the exporter, and its PyTorch model."""

from __future__ import annotations

import os
import shutil

import pytest
import torch

pytest.importorskip("onnxruntime", reason='needs the extra: pip install "archcalc[export]"')

from archcalc.presets import preset
from export.build import Build, build, open_build
from export.reference import reference
from export.runtimes.onnxruntime_ import OnnxRuntimeEngine

CAPACITY = 32
if (worker := os.environ.get("PYTEST_XDIST_WORKER")) and hasattr(os, "sched_setaffinity"):
    cores = sorted(os.sched_getaffinity(0))  # a core each: runtimes start as many threads as they have cores
    os.sched_setaffinity(0, {cores[int(worker.removeprefix("gw")) % len(cores)]})
torch.set_num_threads(1)  # tiny models: two threads beside ONNX Runtime's waiting ones are many times slower


@pytest.fixture(scope="session")
def tiny(tmp_path_factory) -> Build:
    """tiny-decoder in fp32 with caches of 16 and 32 tokens."""
    config = preset("tiny-decoder")
    model, origin = reference(config, "random")
    return build(config, tmp_path_factory.mktemp("tiny") / "build", "fp32", (16, CAPACITY), model, origin)


@pytest.fixture(scope="session")
def pair(tmp_path_factory) -> Build:
    """tiny-encoder-decoder in fp32 with caches of 16 and 32 tokens."""
    return build(preset("tiny-encoder-decoder"), tmp_path_factory.mktemp("pair") / "build", "fp32", (16, CAPACITY))


@pytest.fixture(scope="session")
def listener(tmp_path_factory) -> Build:
    """A model that hears 6 tokens at once."""
    keys = {"d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2}
    keys |= {"decoder_attention_heads": 2, "encoder_ffn_dim": 40, "decoder_ffn_dim": 40, "vocab_size": 61}
    keys |= {"num_mel_bins": 10, "max_source_positions": 6, "max_target_positions": 32}
    config = preset("whisper-tiny", keys)
    return build(config, tmp_path_factory.mktemp("listener") / "build", "fp32", (16,))


SMALL_BERT = {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 40, "num_hidden_layers": 2}
SMALL_BERT |= {"vocab_size": 73, "max_position_embeddings": 96}


@pytest.fixture(scope="session")
def small_bert() -> dict[str, int]:
    """Keys that make a BERT small."""
    return SMALL_BERT


@pytest.fixture(scope="session")
def alone(tmp_path_factory) -> Build:
    """A small encoder alone, BERT with a pooler."""
    return build(preset("bert-base", SMALL_BERT), tmp_path_factory.mktemp("alone") / "build", "fp32")


@pytest.fixture(scope="session")
def tiny_model(tiny):
    return reference(tiny.config, "random")[0]


@pytest.fixture
def engine(tiny) -> OnnxRuntimeEngine:
    return OnnxRuntimeEngine(tiny, CAPACITY)


@pytest.fixture
def copied(tiny, tmp_path) -> Build:
    """A copy of the build that a test may damage."""
    shutil.copytree(tiny.folder, tmp_path / "copy")
    return open_build(tmp_path / "copy")
