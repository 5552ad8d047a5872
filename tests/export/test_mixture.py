"""A mixture of experts in a graph: idle experts are not read, and active ones compute their own tokens."""

import numpy as np
import onnx
import pytest
import torch

from archcalc.hf import config_from_keys
from export.build import build
from export.mixture import ROWS
from export.runtimes.onnxruntime_ import OnnxRuntimeEngine
from models import build as random_model

IDLE = (3, 4)  # of five experts
KEYS = {
    "model_type": "glm4_moe", "vocab_size": 31, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 64, "max_position_embeddings": 256,
    "n_routed_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "n_shared_experts": 1, "n_group": 1,
    "topk_group": 1, "first_k_dense_replace": 0, "routed_scaling_factor": 1.5, "rms_norm_eps": 1e-5,
    "rope_theta": 1e4, "tie_word_embeddings": False, "num_nextn_predict_layers": 0,
}  # fmt: skip
TOKENS = 3 * ROWS  # blocks of an expert: none, one or several


def _model(broken: bool):
    """The same weights each time; two experts that no token goes to, whose weights are no numbers if `broken`."""
    model = random_model(config_from_keys(KEYS, name="mixture"), seed=1)
    mlp = model.layers[0].mlp
    mlp.correction_bias[list(IDLE)] = -1e4
    for expert in IDLE if broken else ():
        for parameter in mlp.experts[expert].parameters():
            parameter.fill_(float("nan"))
    return model


def _run(engine, ids_BT) -> np.ndarray:
    batch, tokens = ids_BT.shape
    positions_BT = np.tile(np.arange(tokens), (batch, 1))
    return engine.run(ids_BT, positions_BT, np.zeros(batch, np.int64), positions_BT, engine.new_cache(batch))


@pytest.fixture(scope="module", params=["any", "onnxruntime"])
def engine(request, tmp_path_factory):
    broken, folder = _model(broken=True), tmp_path_factory.mktemp("mixture") / "build"
    origin = {"kind": "random", "seed": 1}
    made = build(broken.config, folder, "fp32", (TOKENS,), broken, origin, target=request.param)
    return OnnxRuntimeEngine(made, TOKENS)


@pytest.mark.parametrize(("batch", "tokens"), [(1, 1), (2, 1), (1, TOKENS), (2, ROWS + 1)])
@torch.no_grad()
def test_an_idle_expert_is_not_read(engine, batch, tokens):
    """A product with its weights would be no number."""
    ids_BT = np.random.default_rng(0).integers(0, 31, (batch, tokens))
    expected = _model(broken=False)(torch.from_numpy(ids_BT)).numpy()
    got = _run(engine, ids_BT)
    assert np.abs(got - expected).max() <= 1e-5 * np.abs(expected).max()


def test_the_experts_are_quantized_and_the_router_is_not(tmp_path):
    config = _model(broken=False).config
    made = build(config, tmp_path / "build", "int4", (8,))
    names = {tensor.name for tensor in onnx.load(made.graph(8), load_external_data=False).graph.initializer}
    mlp = "layers.0.mlp."
    integers = {f"{mlp}experts.{e}.{part}_proj.weight.int4" for e in range(5) for part in ("gate", "up", "down")}
    assert integers <= names
    assert {f"{mlp}router.weight", f"{mlp}correction_bias"} <= names
    assert not any(name.startswith(f"{mlp}router") and ".int" in name for name in names)
