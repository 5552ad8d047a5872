"""The roofline by hand, and devices as data."""

import math

import pytest

from archcalc.cost import costs, passes
from archcalc.errors import ConfigError
from archcalc.hardware import Device, device, devices
from archcalc.laws.tables import SYSTEMS, systems
from archcalc.ops import Cost
from archcalc.precision import PRECISIONS, precision
from archcalc.presets import names, preset
from archcalc.roofline import roofline, traffic

SLOW = Device("slow", "made up", {"bf16": 1000.0, "fp16": 500.0}, 100.0, 1e9)
BF16, INT4, FP32 = precision("bf16"), precision("int4"), precision("fp32")


def test_traffic_by_hand():
    cost = Cost(params=9, flops=9, weights_read=7, activations=10, cache_read=20, cache_written=3)
    assert traffic(cost, BF16, BF16) == 2 * (7 + 10 + 20 + 3)
    assert traffic(cost, FP32, BF16) == 4 * (7 + 10) + 2 * 23
    assert traffic(cost, INT4, FP32) == 4 + 2 * 10 + 4 * 23  # seven halves of a byte fill four


def test_every_op_takes_the_longer_of_its_two_times():
    for run in passes(preset("tiny-decoder"), 2, 16, 20):
        found = roofline(run, SLOW, BF16, BF16)
        for part, line, cost in zip(found.parts, run.bound.lines, costs(run), strict=True):
            compute, memory = cost.flops / 1000, traffic(cost, BF16, BF16) / 100
            assert part["seconds"] == line.count * max(compute, memory)
            assert part["bound"] == ("compute" if compute > memory else "memory")
            assert (part["name"], part["layers"]) == (line.name, line.count)
            assert part["flops"] == line.count * cost.flops
            assert part["bytes"] == line.count * traffic(cost, BF16, BF16)
        assert found.seconds == pytest.approx(math.fsum(p["seconds"] for p in found.parts), rel=1e-12)
        assert found.intensity == found.flops / found.bytes


def test_the_bound_of_a_pass_is_where_most_of_its_time_goes():
    run = passes(preset("tiny-decoder"), 2, 16, 20)[0]
    fast_memory = Device("", "", {"bf16": 1.0}, 1e12, 1e9)
    fast_products = Device("", "", {"bf16": 1e18}, 1.0, 1e9)
    assert roofline(run, fast_memory, BF16, BF16).bound == "compute"
    assert roofline(run, fast_products, BF16, BF16).bound == "memory"


def test_a_decode_step_is_bound_by_memory_and_a_long_prefill_by_products():
    h100 = device("h100-sxm")
    prefill, decode = (roofline(run, h100, BF16, BF16) for run in passes(preset("llama3-8b"), 1, 4096, 4096))
    assert (prefill.bound, decode.bound) == ("compute", "memory")
    # every weight but the embedding is read once
    weights = 2 * (8_030_261_248 - 525_336_576)
    assert weights / 3.35e12 < decode.seconds < 1.1 * weights / 3.35e12
    assert 65.97e12 / 2 / 989.4e12 < prefill.seconds < 80e12 / 989.4e12


def test_int4_weights_are_multiplied_in_16_bits():
    run = passes(preset("tiny-decoder"), 2, 64, 64)[0]
    compute = [part for part in roofline(run, SLOW, INT4, BF16).parts if part["bound"] == "compute"]
    assert compute
    assert all(part["seconds"] == pytest.approx(part["flops"] / 500) for part in compute)


@pytest.mark.parametrize("name", names())
def test_fewer_bits_move_fewer_bytes(name):
    for run in passes(preset(name), 1, 64, 64):
        fast = Device("", "", dict.fromkeys(("fp32", "bf16", "fp16", "fp8", "int8"), 1e15), 1e12, 1e9)
        moved = [roofline(run, fast, precision(p), BF16).bytes for p in ("fp32", "bf16", "int8", "int4")]
        assert moved == sorted(moved, reverse=True)
        assert len(set(moved)) == 4


def test_devices_have_sources_and_plausible_peaks():
    for name, found in devices().items():
        assert found.name == name
        assert len(found.source) > 20
        assert "sparsity" not in found.source or "dense" in found.source
        assert 1e13 < found.wide_rate < 1e16
        rates = [found.flops_per_second.get(kind) for kind in ("fp32", found.wide, "fp8", "fp4")]
        rates = [rate for rate in rates if rate]
        assert rates == sorted(rates)  # never a rate with sparsity, which would be twice as high
        assert 2e11 < found.bytes_per_second < 1e13
        assert 1e10 < found.memory_bytes < 1e12
        assert 1e6 < found.cache_bytes < 1e9 and 1 <= found.units < 1000
        assert (found.devices_per_node > 1) == (found.link_bytes_per_second > 0)
    assert device("h100-sxm").rate("bf16") == 989.4e12
    assert device("h200").bytes_per_second == 4.8e12
    assert len(devices()) >= 25


def test_nvidias_own_tables_have_the_same_peaks():
    """Of the devices in aiconfigurator-core, within what datasheets round and per-GPU parts of a node differ."""
    pytest.importorskip("aiconfigurator_core", reason='not installed: pip install "archcalc[tables]"')
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    for name, system in SYSTEMS.items():
        facts, found = yaml.safe_load((systems() / f"{system}.yaml").read_text()), device(name)
        gpu, tolerance = facts["gpu"], 0.12 if name == "rtx-pro-6000" else 0.05  # theirs is the slower server edition
        assert found.bytes_per_second == pytest.approx(gpu["mem_bw"], rel=0.05)
        assert found.wide_rate == pytest.approx(gpu["bfloat16_tc_flops"], rel=tolerance)
        for kind in ("fp8", "fp4"):
            if kind in found.flops_per_second:
                assert found.rate(kind) == pytest.approx(gpu[f"{kind}_tc_flops"], rel=tolerance)
        assert found.memory_bytes == pytest.approx(gpu["mem_capacity"], rel=0.08)
        if facts["node"]["intra_node_bw"]:
            assert found.link_bytes_per_second == pytest.approx(facts["node"]["intra_node_bw"], rel=0.01), name


def test_unknown_names_are_refused_with_the_nearest():
    with pytest.raises(ConfigError, match=r"device='h20': unknown \(did you mean h200\?\)"):
        device("h20")
    with pytest.raises(ConfigError, match="precision=fp8: slow has no fp8 rate; it has bf16, fp16"):
        SLOW.rate("fp8")
    with pytest.raises(ConfigError, match="use one of fp32, bf16"):
        precision("bf8")


def test_bytes_of_weights_are_rounded_up():
    assert {name: PRECISIONS[name].stored_bytes(3) for name in PRECISIONS} == {
        "fp32": 12,
        "bf16": 6,
        "fp16": 6,
        "fp8": 3,
        "int8": 3,
        "fp4": 2,
        "int4": 2,
    }
