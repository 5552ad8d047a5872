"""Exact comparisons, the latency law and its calibration: they hold, and they fail when what they check is broken."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from archcalc.hf import config_from_keys
from archcalc.latency import Machine, predict
from archcalc.precision import precision
from archcalc.presets import preset
from export import calibrate, compare
from export.bench import Point, Timing, bench, measure, prepare
from export.build import build
from export.files import ExportError
from export.graph_count import count_flops, count_parameters
from export.runtimes import engines
from export.runtimes.onnxruntime_ import OnnxRuntimeEngine

WEIGHTS_AND_FLOPS = {"parameters", "prefill FLOPs", "decode FLOPs", "weight-file bytes"}
MACHINE = Machine(2e10, 1.5e11, 2.0, 1.5e-10, 4e-10, 1e-5)


def test_counts_of_a_build_are_equal(tiny, engine):
    rows = compare.exact(tiny, engine)
    assert [row.quantity for row in rows] == [
        "parameters", "prefill FLOPs", "decode FLOPs", "KV-cache bytes", "weight-file bytes",
    ]  # fmt: skip
    assert all(row.passed and row.predicted > 0 for row in rows)


@pytest.mark.parametrize(
    ("change", "broken"),
    [
        ({"num_key_value_heads": 4}, WEIGHTS_AND_FLOPS | {"KV-cache bytes"}),
        ({"num_hidden_layers": 3}, WEIGHTS_AND_FLOPS | {"KV-cache bytes"}),
        ({"attention_bias": True}, {"parameters", "weight-file bytes"}),
        ({"vocab_size": 255}, WEIGHTS_AND_FLOPS),
    ],
)
def test_a_wrong_config_is_found(tiny, engine, change, broken):
    other = dataclasses.replace(tiny, config=preset("tiny-decoder", change))
    assert {row.quantity for row in compare.exact(other, engine) if not row.passed} == broken


@pytest.mark.parametrize("kind", ["pair", "listener", "alone"])
def test_counts_of_a_build_with_an_encoder_are_equal(kind, request):
    made = request.getfixturevalue(kind)
    rows = compare.exact(made, _engine(made))
    quantities = ["parameters", "encode FLOPs"]
    if kind != "alone":
        quantities += ["prefill FLOPs", "decode FLOPs", "KV-cache bytes", "cross-KV bytes"]
    assert [row.quantity for row in rows] == [*quantities, "weight-file bytes"]
    assert all(row.passed and row.predicted > 0 for row in rows), rows


@pytest.mark.parametrize("precision_name", ["fp16", "int8", "int4", "int8-dynamic"])
@pytest.mark.parametrize("name", ["tiny-encoder-decoder", "bert-base", "roberta-base"])
def test_counts_are_equal_in_every_precision(name, precision_name, small_bert, tmp_path):
    """Of a buffer beside the weights, a pooler that stays as it is, and a head with another matrix in front."""
    config = preset(name, {} if name.startswith("tiny") else small_bert)
    made = build(config, tmp_path / "build", precision_name, (16,) if config.decoder else None)
    rows = compare.exact(made, _engine(made))
    assert all(row.passed for row in rows), rows


@pytest.mark.parametrize(
    ("kind", "change", "broken"),
    [
        ("pair", {"encoder_layers": 3}, {"parameters", "encode FLOPs", "weight-file bytes"}),
        ("pair", {"encoder_ffn_dim": 120}, {"parameters", "encode FLOPs", "weight-file bytes"}),
        ("pair", {"decoder_ffn_dim": 120}, WEIGHTS_AND_FLOPS),
        ("pair", {"share_encoder_decoder_embeddings": False}, {"parameters", "weight-file bytes"}),
        ("alone", {"num_hidden_layers": 3}, {"parameters", "encode FLOPs", "weight-file bytes"}),
        ("alone", {"type_vocab_size": 1}, {"parameters", "weight-file bytes"}),
    ],
)
def test_a_wrong_config_with_an_encoder_is_found(kind, change, broken, request):
    made = request.getfixturevalue(kind)
    keys = {key: value for key, value in made.config.keys.items() if key not in change} | change
    other = dataclasses.replace(made, config=config_from_keys(keys, name="other"))
    assert {row.quantity for row in compare.exact(other, _engine(made)) if not row.passed} == broken


def test_wrong_keys_of_a_source_are_found(pair, monkeypatch):
    engine = _engine(pair)
    encode = engine.encode
    monkeypatch.setattr(engine, "encode", lambda *arrays: dict(list(encode(*arrays).items())[1:]))
    assert {row.quantity for row in compare.exact(pair, engine) if not row.passed} == {"cross-KV bytes"}


def test_a_wrong_cache_is_found(tiny, engine):
    class Half:
        capacity = engine.capacity

        def new_cache(self, batch):
            return engine.new_cache(batch)[:2]

        cache_bytes = staticmethod(engine.cache_bytes)

    assert {row.quantity for row in compare.exact(tiny, Half()) if not row.passed} == {"KV-cache bytes"}


def _engine(made):
    return engines(made, "onnxruntime")(max(made.capacities, default=None))


def test_a_windowed_model_reserves_the_whole_static_cache(tmp_path):
    made = build(preset("tiny-decoder", {"sliding_window": 4}), tmp_path / "build", "fp32", (32,))
    assert all(row.passed for row in compare.exact(made, OnnxRuntimeEngine(made, 32)))


@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 5, 1), (3, 4, 4)])
def test_flops_of_a_graph_count_its_products(tiny, shape):
    batch, tokens, positions = shape
    sizes = {"batch": batch, "tokens": tokens, "logit_positions": positions}
    matrices = 2 * (64 * 64 * 2 + 64 * 32 * 2 + 3 * 64 * tiny.config.decoder.layers[0].mlp.intermediate_size)
    attention = 2 * 2 * 32 * 64
    by_hand = 2 * batch * (tokens * (matrices + attention) + positions * 64 * tiny.config.vocab_size)
    assert count_flops(tiny.graph(32), sizes) == by_hand
    assert count_parameters(tiny.graph(16)) == count_parameters(tiny.graph(32)) == 125_248


def test_the_law_falls_with_bandwidth_and_rate_and_grows_with_work(tiny):
    run = Point(2, 8, 32).run(tiny)
    base = predict(run, MACHINE, precision("fp32"))
    for name in ("bandwidth", "rate"):
        faster = dataclasses.replace(MACHINE, **{name: 2 * getattr(MACHINE, name)})
        assert predict(run, faster, precision("fp32")) < base
    for name in ("key_seconds", "pair_seconds", "launch_seconds"):
        slower = dataclasses.replace(MACHINE, **{name: 2 * getattr(MACHINE, name)})
        assert predict(run, slower, precision("fp32")) > base
    assert predict(Point(4, 8, 32).run(tiny), MACHINE, precision("fp32")) > base


def test_the_law_charges_what_a_decoder_reads_of_a_source(pair):
    """Cross-attention is attention: all terms of it grow with the source, and the law with each of them."""
    short, long = (predict(Point(2, 4, 32, source).run(pair), MACHINE, precision("fp32")) for source in (8, 16))
    keys = 2 * 2 * 2 * 64 * 8  # elements of 8 more keys and values: layers, sequences, hidden_size
    pairs = 2 * 2 * 2 * 4 * 4 * 8  # layers, both products, sequences, heads, queries
    flops, traffic = 2 * 4 * keys, 4 * keys
    written = flops / MACHINE.rate + keys * MACHINE.key_seconds + pairs * MACHINE.pair_seconds
    assert long - short == pytest.approx(written + traffic / MACHINE.bandwidth, rel=1e-6)


def test_an_encoder_pass_is_of_the_encoders_ops(pair, alone):
    run = Point(2, 7, None).run(pair)
    names = {line.name for line in run.bound.lines}
    assert "encoder.layers.*.mlp.up_proj" in names and "decoder.layers.*.cross_attn.k_proj" in names
    assert "decoder.layers.*.mlp.up_proj" not in names
    assert {run.name, Point(2, 7, None).run(alone).name} == {"encode"}
    assert "pooler" in {line.name for line in Point(2, 7, None).run(alone).bound.lines}


def _made_up(points, build_, machine, noise=0.0):
    rng = np.random.default_rng(0)
    seconds = [predict(point.run(build_), machine, precision("fp32")) for point in points]
    return [Timing(p, ((s * np.exp(noise * rng.standard_normal()),),)) for p, s in zip(points, seconds, strict=True)]


def _probe_timings(tiny, noise=0.0):
    """What a machine that obeys the law would measure on the probes; nothing is built for it."""
    found = []
    for name, keys in calibrate.PROBES.items():
        probe = dataclasses.replace(tiny, config=config_from_keys(keys, name=name))
        found += [(probe, t) for t in _made_up(calibrate.PROBE_POINTS[name], probe, MACHINE, noise)]
    return found


def test_calibration_finds_the_machine_that_made_the_timings(tiny):
    machine, left = calibrate.fit(_probe_timings(tiny))
    assert max(map(abs, left)) < 0.01
    for name, value in machine.as_dict().items():
        assert value == pytest.approx(getattr(MACHINE, name), rel=0.1), name


def test_a_prediction_from_the_probes_holds_for_another_model(tiny):
    machine, _ = calibrate.fit(_probe_timings(tiny, noise=0.02))
    big = dataclasses.replace(tiny, config=preset("gpt2-medium"))
    points = compare.points((256, 1024))
    rows = compare.latency(big, _made_up(points, big, MACHINE), machine)
    assert compare.latency_passed(rows)
    slow = [compare.Latency(dataclasses.replace(r.timing, turns=((2 * r.timing.median,),)), r.predicted) for r in rows]
    assert not compare.latency_passed(slow)
    one_bad = [
        compare.Latency(dataclasses.replace(rows[0].timing, turns=((2 * rows[0].timing.median,),)), rows[0].predicted)
    ]
    assert not compare.latency_passed(one_bad + rows[1:])


def test_the_check_never_measures_what_calibration_saw():
    held_out = compare.points((256, 1024))
    assert len(set(held_out)) >= 10
    assert not set(held_out) & set().union(*calibrate.PROBE_POINTS.values())
    assert {p.phase for p in held_out} == {"prefill", "decode"}
    assert len({p.batch for p in held_out}) >= 4


def test_an_encoder_is_measured_at_other_lengths_than_the_probes_have(pair, alone, listener):
    found = compare.held_out(pair)
    assert {p.phase for p in found} == {"encode", "prefill", "decode"}
    assert {p.source for p in found if p.phase != "encode"} == {64, 256}  # the longest one that it has positions for
    assert len({p.tokens for p in found if p.phase == "encode"}) >= 8
    assert len(compare.held_out(alone)) == 10
    assert max(p.tokens for p in compare.held_out(alone)) == 96
    assert {p.tokens if p.phase == "encode" else p.source for p in compare.held_out(listener)} == {6}
    names = [compare.named(p) for p in (Point(1, 6, None), Point(2, 1, 16, 6), Point(2, 1, 16))]
    assert names == ["encode B=1 T=6", "decode B=2 T=1 S=16 X=6", "decode B=2 T=1 S=16"]


def test_all_points_take_turns(monkeypatch):
    monkeypatch.setattr("export.bench.WARM_UP_SECONDS", 0.0)
    monkeypatch.setattr("export.bench.TURN_SECONDS", 0.0)
    order = []
    turns = measure([lambda: order.append("a"), lambda: order.append("b")], rounds=3)
    assert order == ["a", "a", "b", "b"] * 3  # the first of each turn is not measured
    assert [[len(samples) for samples in found] for found in turns] == [[1, 1, 1], [1, 1, 1]]


def test_a_turn_counts_once_however_many_samples_it_has():
    timing = Timing(Point(1, 1, 8), ((1.0,) * 50, (3.0,), (3.0, 3.0)))
    assert timing.median == 3.0
    assert timing.quantile(0.5) == 1.0


def test_bench_measures_each_point(tiny, engine):
    points = [Point(1, 1, 32), Point(2, 8, 32)]
    timings = bench(tiny, lambda capacity: engine, points, rounds=4)
    assert [t.point for t in timings] == points
    assert all(0 < t.median <= t.quantile(0.9) <= t.quantile(0.99) for t in timings)
    with pytest.raises(ExportError, match=r"context=64: the build has graphs for \[16, 32\]"):
        prepare(tiny, lambda capacity: engine, [Point(1, 1, 64)])
