"""Builds and engines for the tests of TensorRT, on every machine as if it had no GPU."""

import shutil

import pytest
from engines import CAPACITY, KINDS

pytest.importorskip("tensorrt_rtx", reason='needs TensorRT-RTX: pip install "archcalc[trt-rtx]"')

from archcalc.hf import config_from_keys
from export import engine_from_onnx, tensorrt_package
from export.build import build, open_build
from export.engine_from_onnx import build_engine
from export.runtimes import tensorrt_


@pytest.fixture(autouse=True)
def _no_gpu(request, monkeypatch):
    """The same tests on every machine: as if there were no GPU."""
    if not request.node.get_closest_marker("gpu"):
        for module in (engine_from_onnx, tensorrt_package, tensorrt_):
            monkeypatch.setattr(module, "gpu", lambda: None)


@pytest.fixture(scope="session")
def builds(tmp_path_factory):
    folder = tmp_path_factory.mktemp("builds")
    return {
        kind: build(config_from_keys(keys, name=kind), folder / kind, precision, (CAPACITY,))
        for kind, (keys, precision) in KINDS.items()
    }


@pytest.fixture
def fresh(builds, tmp_path):
    """A copy of a build, to change: `fresh(kind)`."""

    def copy(kind="llama-fp16"):
        shutil.copytree(builds[kind].folder, tmp_path / kind)
        return open_build(tmp_path / kind)

    return copy


@pytest.fixture
def built(fresh):
    """(build, engine) of the fp16 model, to change."""
    opened = fresh()
    return opened, build_engine(opened, CAPACITY, max_prompt=8)
