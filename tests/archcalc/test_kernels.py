"""What a rank launches: all of the model's products at one rank, and their parts at several."""

from __future__ import annotations

from math import prod

import pytest

from archcalc.cost import bound, costs
from archcalc.cost import passes as passes_of
from archcalc.errors import ConfigError
from archcalc.kernels import Parallel, check_parallel, kernels
from archcalc.presets import names, preset

ROWS = {"B": 2, "T": 3, "S": 3, "R": 1, "X": 5}
DECODERS = [name for name in names() if preset(name).decoder and not preset(name).encoder]


def product_flops(found) -> int:
    routed = [m for m in found.mixtures if m.matrices]
    experts = sum(2 * m.count * 6 * m.chosen * m.matrices * m.hidden * m.inner for m in routed)
    return experts + sum(2 * p.count * prod(ROWS[axis] for axis in p.rows) * p.n * p.k for p in found.products)


@pytest.mark.parametrize("name", DECODERS)
def test_one_rank_multiplies_what_the_op_list_does(name):
    """All products with a matrix; attention and the states of recurrent layers are other kernels."""
    config = preset(name)
    step = bound(config)[1]
    run = passes_of(config, 2, 3, 3)[0]._replace(dims=ROWS, bound=step)
    lines = zip(step.lines, costs(run), strict=True)
    wanted = sum(line.count * cost.flops for line, cost in lines if line.op.matrices and not line.op.mask)
    assert product_flops(kernels(config, Parallel())) == wanted


def test_ranks_share_every_matrix_and_reduce_twice_a_layer():
    config = preset("llama3-70b")
    one, eight = kernels(config, Parallel()), kernels(config, Parallel(tp=8))
    assert not one.reduces
    assert [(r.name, r.count, r.width) for r in eight.reduces] == [
        ("layers.*.self_attn.all_reduce", 80, 8192),
        ("layers.*.mlp.all_reduce", 80, 8192),
    ]
    for whole, part in zip(one.products, eight.products, strict=True):
        assert whole.name == part.name and whole.n * whole.k == 8 * part.n * part.k
    assert (eight.attention[0].heads, eight.attention[0].kv_heads) == (8, 1)
    assert kernels(config, Parallel(tp=16)).attention[0].kv_heads == 1  # there are 8: they are repeated


def test_latent_attention_reads_one_head_in_a_decode_and_all_in_a_prefill():
    config = preset("deepseek-v3")
    absorbed, expanded = (kernels(config, Parallel(tp=8), form).attention[0] for form in ("absorbed", "expanded"))
    assert (absorbed.heads, absorbed.kv_heads, absorbed.width, absorbed.value_width) == (16, 1, 576, 512)
    assert absorbed.shared
    assert (expanded.heads, expanded.kv_heads, expanded.width, expanded.value_width) == (16, 16, 192, 128)


def test_experts_are_divided_whole_or_cut():
    config = preset("mixtral-8x7b")
    cut, whole = (kernels(config, Parallel(tp=4, ep=ep)).mixtures[0] for ep in (1, 4))
    assert (cut.experts, cut.inner) == (8, 14336 // 4)
    assert (whole.experts, whole.inner) == (2, 14336)


@pytest.mark.parametrize(
    ("name", "parallel", "message"),
    [
        ("llama3-70b", Parallel(tp=6), "tp=6: must divide num_attention_heads=64; use one of 1, 2, 4, 8, 16, 32, 64"),
        ("llama3-70b", Parallel(ep=2), "ep=2: llama3-70b has no experts; leave it out"),
        ("llama3-70b", Parallel(pp=81), "pp=81: the model has 80 layers; give at most that many"),
        ("mixtral-8x7b", Parallel(tp=8, ep=3), "ep=3: must divide num_local_experts=8 and tp x dp=8"),
    ],
)
def test_a_division_that_does_not_come_out_even_is_refused(name, parallel, message):
    with pytest.raises(ConfigError) as error:
        check_parallel(preset(name), parallel)
    assert message in str(error.value)
