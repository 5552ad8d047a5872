"""Every family's checkpoint, as transformers holds it and as it is published, fills the model the calculator counts."""

from dataclasses import replace

import pytest
import torch

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
pytest.importorskip("safetensors", reason="safetensors is not installed")

import models  # noqa: E402
from archcalc.config import Attention as Heads  # noqa: E402
from archcalc.config import Block, GatedDeltaNet, LatentAttention, Mamba2, Norm  # noqa: E402
from archcalc.errors import ArchcalcError  # noqa: E402
from archcalc.hf import config_from_keys  # noqa: E402
from models import layouts, names, weights  # noqa: E402
from models.names import gguf_tables, rules  # noqa: E402
from models.parity.checkpoints import CHECKPOINTS, tiny  # noqa: E402
from models.supported import check_computed  # noqa: E402

NORM = Norm("rmsnorm", 1e-5)
FAMILIES = sorted(CHECKPOINTS)


def readers(tensors: dict):
    return ((name, lambda tensor=tensor: tensor) for name, tensor in tensors.items())


def stored(model) -> dict[str, torch.Tensor]:
    """All that a model of ours takes from a file."""
    return dict(model.state_dict())


@pytest.mark.parametrize("name", FAMILIES)
def test_the_file_that_transformers_writes_is_its_own_state(name, tmp_path):
    """A file has the published names: experts by themselves, ties once. What is in memory has none of that."""
    theirs, keys = tiny(name)
    theirs.save_pretrained(tmp_path)
    from_file = stored(models.load(tmp_path))
    from_memory = stored(weights.assign(config_from_keys(keys), readers(theirs.state_dict())))
    assert from_file.keys() == from_memory.keys()
    for ours, tensor in from_memory.items():
        assert torch.equal(from_file[ours], tensor), ours
        assert tensor.is_contiguous(), ours
        assert tensor.isfinite().all(), ours


@pytest.mark.parametrize("name", FAMILIES)
def test_a_checkpoint_of_the_bare_model_has_the_names_without_their_prefix(name):
    theirs, keys = tiny(name)
    bare = {
        tensor_name.removeprefix(f"{theirs.base_model_prefix}."): tensor
        for tensor_name, tensor in theirs.state_dict().items()
    }
    weights.assign(config_from_keys(keys), readers(bare))


@pytest.mark.parametrize("name", FAMILIES)
def test_no_tensor_can_be_left_out_or_added(name):
    theirs, keys = tiny(name)
    config, state = config_from_keys(keys), theirs.state_dict()
    owned = {id(tensor): tensor_name for tensor_name, tensor in theirs.named_parameters()}
    for tensor_name in list(owned.values())[:: max(1, len(owned) // 6)]:
        twins = {other for other, tensor in state.items() if tensor.data_ptr() == state[tensor_name].data_ptr()}
        rest = {other: tensor for other, tensor in state.items() if other not in twins}
        if any("embed_positions" in twin for twin in twins):
            continue  # Marian computes them
        with pytest.raises(ArchcalcError, match="missing"):
            weights.assign(config, readers(rest))
    with pytest.raises(ArchcalcError, match=r"layers\.0\.strange: not understood"):
        weights.assign(config, readers(state | {"layers.0.strange": torch.zeros(1)}))


def test_every_rule_names_a_layout_and_known_places():
    tables = [*names.HUGGING_FACE.values(), *gguf_tables.TABLES.values()]
    used = {"same"}
    for table in tables:
        for _, target, layout in weights._compiled(tuple(table.items())):
            target.format(**dict.fromkeys(rules.PLACES, "0"))
            used.add(layout)
    assert used == {*layouts.LAYOUTS, rules.EITHER, rules.SPARE}


def test_a_family_without_a_table():
    keys = {"model_type": "ctrl", "vocab_size": 61, "n_embd": 32, "n_layer": 1, "n_head": 4, "dff": 40}
    with pytest.raises(ArchcalcError, match="model_type='ctrl'"):
        weights.assign(config_from_keys(keys), ())


def test_old_names_of_a_norm():
    theirs, keys = tiny("bert")
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    state = {
        name[: -len(end)] + old[end] if (end := ".".join(name.split(".")[-2:])) in old else name: tensor
        for name, tensor in theirs.state_dict().items()
    }
    assert any(name.endswith("gamma") for name in state)
    config = config_from_keys(keys)
    ours = weights.assign(config, readers(state | {"bert.pooler.dense.bias": torch.ones(32)}))  # of another task
    assert torch.equal(ours.embed_norm.weight, theirs.bert.embeddings.LayerNorm.weight)


def test_layers_that_predict_further_tokens_are_left_out():
    theirs, keys = tiny("deepseek_v3")
    state = theirs.state_dict() | {"model.layers.3.eh_proj.weight": torch.ones(1)}
    weights.assign(config_from_keys(keys | {"num_nextn_predict_layers": 1}), readers(state))
    with pytest.raises(ArchcalcError, match=r"layers\.3\.eh_proj\.weight: not understood"):
        weights.assign(config_from_keys(keys), readers(state))
    theirs, keys = tiny("qwen3_next")
    state = theirs.state_dict() | {"mtp.norm.weight": torch.ones(1)}
    weights.assign(config_from_keys(keys | {"mtp_num_hidden_layers": 1}), readers(state))


def test_rotary_pairs_of_deepseek_are_neighbours_unless_its_config_says_otherwise():
    theirs, keys = tiny("deepseek_v3")
    name = "layers.0.self_attn.kv_a_proj.rope.weight"
    rows = theirs.state_dict()["model.layers.0.self_attn.kv_a_proj_with_mqa.weight"][-8:]
    ours = weights.assign(config_from_keys(keys), readers(theirs.state_dict()))
    assert torch.equal(ours.get_parameter(name), rows[[0, 2, 4, 6, 1, 3, 5, 7]])
    ours = weights.assign(config_from_keys(keys | {"rope_interleave": False}), readers(theirs.state_dict()))
    assert torch.equal(ours.get_parameter(name), rows)


def rows_of(layout: str, rows: list[str], mixer) -> list[list[str]]:
    """What a layout makes of named rows."""
    parts = layouts.LAYOUTS[layout](torch.arange(len(rows))[:, None], Block(mixer, None, NORM), {})
    return [[rows[index] for index in part.flatten()] for part in parts]


GROUPED = Heads(4, 2, 1)  # one row a head
LATENT = LatentAttention(2, None, 3, 1, 2, 2, NORM)


@pytest.mark.parametrize(
    ("layout", "mixer", "rows", "expected"),
    [
        ("qkv", GROUPED, "q0 q1 q2 q3 k0 k1 v0 v1", "q0 q1 q2 q3 | k0 k1 | v0 v1"),
        ("qkv_groups", GROUPED, "q0 q1 k0 v0 q2 q3 k1 v1", "q0 q1 q2 q3 | k0 k1 | v0 v1"),
        ("qkv_groups", Heads(2, 2, 1), "q0 k0 v0 q1 k1 v1", "q0 q1 | k0 k1 | v0 v1"),
        ("qkv_groups", Heads(2, 1, 2), "q0 q1 q2 q3 k0 k1 v0 v1", "q0 q1 q2 q3 | k0 k1 | v0 v1"),
        ("query_and_gate", Heads(2, 1, 2), "q0 q1 g0 g1 q2 q3 g2 g3", "q0 q1 q2 q3 | g0 g1 g2 g3"),
        ("halves", GROUPED, "g0 g1 u0 u1", "g0 g1 | u0 u1"),
        ("latent_queries", LATENT, "n0 r0 s0 n1 r1 s1", "n0 n1 | r0 s0 r1 s1"),
        ("latent_keys_values", LATENT, "k0 v0 w0 k1 v1 w1", "k0 k1 | v0 w0 v1 w1"),
        ("latent_and_rotary_key", LATENT, "j0 j1 j2 r0 r1", "j0 j1 j2 | r0 r1"),
        ("mamba2_in_proj", Mamba2(2, 1, 3, 1, 4), "z0 z1 x0 x1 b0 b1 b2 c0 c1 c2 t0 t1",
         "z0 z1 | x0 x1 | b0 b1 b2 | c0 c1 c2 | t0 t1"),
        ("delta_qkvz", GatedDeltaNet(2, 4, 1, 1, 4, NORM), "q0 k0 v0 v1 z0 z1 q1 k1 v2 v3 z2 z3",
         "q0 q1 | k0 k1 | v0 v1 v2 v3 | z0 z1 z2 z3"),
        ("delta_ba", GatedDeltaNet(2, 4, 1, 1, 4, NORM), "b0 b1 a0 a1 b2 b3 a2 a3", "b0 b1 b2 b3 | a0 a1 a2 a3"),
    ],
)  # fmt: skip
def test_rows_of_a_fused_tensor(layout, mixer, rows, expected):
    assert rows_of(layout, rows.split(), mixer) == [part.split() for part in expected.split(" | ")]


def test_rotary_neighbours():
    pairs = ["a0", "b0", "a1", "b1", "c0", "d0", "c1", "d1"]  # two heads of two pairs
    with_rotary = Heads(2, 2, 4, rotary=models.attention.config.Rotary())
    assert rows_of("rotary_neighbours", pairs, with_rotary) == [["a0", "a1", "b0", "b1", "c0", "c1", "d0", "d1"]]
    assert rows_of("rotary_neighbours", pairs, Heads(2, 2, 4)) == [pairs]
    half = Heads(2, 2, 4, rotary=models.attention.config.Rotary(partial_rotary_factor=0.5))
    assert rows_of("rotary_neighbours", pairs, half) == [pairs]  # of one pair each
    three_quarters = Heads(1, 1, 8, rotary=models.attention.config.Rotary(partial_rotary_factor=0.75))
    rest = ["a0", "b0", "a1", "b1", "a2", "b2", "x", "y"]
    assert rows_of("rotary_neighbours", rest, three_quarters) == [["a0", "a1", "a2", "b0", "b1", "b2", "x", "y"]]


@pytest.mark.parametrize("kind", names.COMPUTED)
def test_a_key_that_no_part_expresses_is_refused_at_another_value(kind):
    for key, value in names.COMPUTED[kind].items():
        config = config_from_keys(tiny("llama")[1])
        same, other = ({"model_type": kind, key: given} for given in (value, "another"))
        check_computed(replace(config, keys=same))
        with pytest.raises(ArchcalcError, match=f"{key}='another': the models compute"):
            check_computed(replace(config, keys=other))


def test_stacked_experts():
    stacked = torch.arange(2 * 4 * 3).reshape(2, 4, 3)  # two experts

    def parts(layout, tensor):
        return [part.tolist() for part in layouts.LAYOUTS[layout](tensor, None, {})]

    first, second = stacked.tolist()
    assert parts("experts", stacked) == [first, second]
    assert parts("expert_halves", stacked) == [first[:2], first[2:], second[:2], second[2:]]
    assert parts("expert_columns", stacked) == [stacked[0].T.tolist(), stacked[1].T.tolist()]
    turns = stacked.transpose(1, 2)  # [E, 3, 4]: gate and up in turns
    assert parts("expert_turns", turns) == [first[::2], first[1::2], second[::2], second[1::2]]
    assert parts("expert_turns", stacked[:, :, 0]) == [[0, 6], [3, 9], [12, 18], [15, 21]]


@pytest.mark.parametrize(("layout", "by"), [("plus_one", 1), ("less_one", -1)])
def test_a_scale_is_not_rounded_where_the_one_is_added(layout, by):
    scale = torch.tensor([0.0123, -0.0017, 1.0078]).bfloat16()
    (found,) = layouts.LAYOUTS[layout](scale, None, {})
    assert torch.equal(found, scale.float() + by)
