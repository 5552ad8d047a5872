"""A mixture of experts in a graph: idle experts are not read, and active ones compute their own tokens."""

import numpy as np
import onnx
import pytest
import torch

from archcalc.hf import config_from_keys
from export.as_stored import as_stored
from export.build import build
from export.mixture import ROWS
from export.runtimes.onnxruntime_ import OnnxRuntimeEngine
from models import build as random_model

EXPERTS = 5
KEYS = {
    "model_type": "mixtral", "vocab_size": 31, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 64, "max_position_embeddings": 256, "num_local_experts": EXPERTS,
    "num_experts_per_tok": 2, "rms_norm_eps": 1e-5, "rope_theta": 1e4, "tie_word_embeddings": False,
    "hidden_act": "silu",
}  # fmt: skip
TOKENS = 3 * ROWS  # blocks of an expert: none, one or several
TARGETS = ("any", "onnxruntime")


def _model(seed: int = 1):
    return random_model(config_from_keys(KEYS, name="mixture"), seed=seed)


def _chosen(model, ids_BT) -> set[int]:
    """The experts that a pass uses."""
    found = []
    mlp = model.layers[0].mlp
    handle = mlp.register_forward_pre_hook(lambda module, inputs: found.append(module.route(inputs[0].flatten(0, 1))[1]))
    model(torch.from_numpy(ids_BT))
    handle.remove()
    return set(found[0].flatten().tolist())


def _run(engine, ids_BT) -> np.ndarray:
    batch, tokens = ids_BT.shape
    positions_BT = np.tile(np.arange(tokens), (batch, 1))
    return engine.run(ids_BT, positions_BT, np.zeros(batch, np.int64), positions_BT, engine.new_cache(batch))


@pytest.fixture(scope="module", params=TARGETS)
def made(request, tmp_path_factory):
    """(a build with experts 3 and 4 that nobody may read, the model with those in order)."""
    model, broken = _model(), _model()
    for one in (model, broken):
        one.layers[0].mlp.router.weight[3:] = -one.layers[0].mlp.router.weight[:2].abs() - 9
        one.layers[0].mlp_norm.weight.fill_(1.0)
    for expert in broken.layers[0].mlp.experts[3:]:
        for parameter in expert.parameters():
            parameter.fill_(float("nan"))
    folder = tmp_path_factory.mktemp("mixture") / "build"
    origin = {"kind": "random", "seed": 1}
    return build(model.config, folder, "fp32", (128,), broken, origin, target=request.param), model


@pytest.mark.parametrize(("batch", "tokens"), [(1, 1), (2, 1), (1, TOKENS), (2, ROWS + 1)])
def test_an_idle_expert_is_not_read(made, batch, tokens):
    """Its weights are no numbers, and a product with them would be none either."""
    built, model = made
    rows = np.random.default_rng(0).integers(0, 31, (batch, 128))
    with torch.no_grad():
        usable = [ids for ids in rows if not _chosen(model, ids[None, :1]) & {3, 4}]
        ids_BT = np.stack([ids[:tokens] for ids in usable[:batch]])
        assert _chosen(model, ids_BT).isdisjoint({3, 4})
        expected = model(torch.from_numpy(ids_BT)).numpy()
    got = _run(OnnxRuntimeEngine(built, 128), ids_BT)
    assert np.abs(got - expected).max() <= 1e-5 * np.abs(expected).max()
