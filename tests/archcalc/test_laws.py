"""Laws of kernels: against the limit, against measured tables on rows that no fit saw, and what they refuse."""

from __future__ import annotations

import importlib.util
import time
from dataclasses import replace

import pytest

from archcalc.errors import ArchcalcError, ConfigError
from archcalc.hardware import device, devices
from archcalc.kernels import Parallel, kernels
from archcalc.laws import tables
from archcalc.laws.attention import decode_kernels
from archcalc.laws.experts import load
from archcalc.laws.fitted import ENGINES, LIKE, constants, fitted, laws
from archcalc.laws.limit import Limit
from archcalc.laws.problems import problems
from archcalc.precision import precision
from archcalc.presets import preset
from archcalc.step import Sequences, spent
from archcalc.validate import Row, kernel_rows, rendered

BF16, FP8 = precision("bf16"), precision("fp8")
STEPS = [Sequences(1, 1, 1000), Sequences(64, 1, 4000), Sequences(1, 2048, 2048), Sequences(16, 128, 128)]
MODELS = [("llama3-8b", Parallel()), ("llama3-70b", Parallel(tp=8)), ("mixtral-8x7b", Parallel(tp=2)),
          ("deepseek-v3", Parallel(tp=8, ep=8)), ("gpt-oss-20b", Parallel())]  # fmt: skip
installed = pytest.mark.skipif(
    importlib.util.find_spec("aiconfigurator_core") is None or importlib.util.find_spec("pyarrow") is None,
    reason='measured tables are not installed: pip install "archcalc[tables]"',
)


@pytest.mark.parametrize(("name", "parallel"), MODELS)
@pytest.mark.parametrize("work", STEPS)
@pytest.mark.parametrize("engine", ENGINES)
def test_no_law_is_faster_than_light(name, parallel, work, engine):
    """Kernel by kernel; of experts the whole, as the law has the busiest rank and the limit the average one."""
    found, target = kernels(preset(name), parallel), device("h200")
    fast = spent(found, work, Limit(target, BF16, BF16), parallel.tp)
    slow = spent(found, work, laws("h200", engine, BF16, BF16), parallel.tp)
    assert len(fast) == len(slow) > 5
    for light, real in zip(fast, slow, strict=True):
        assert light.name == real.name
        assert 0 < light.seconds <= real.seconds, light.name


@pytest.mark.parametrize("kind", ["product", "attention", "experts", "collective"])
def test_more_work_takes_longer(kind):
    found, law = kernels(preset("mixtral-8x7b"), Parallel(tp=2)), laws("h100-sxm", "vllm", BF16, BF16)

    def seconds(tokens):
        return sum(s.seconds for s in spent(found, Sequences(1, tokens, tokens), law, 2) if s.kind == kind)

    times = [seconds(tokens) for tokens in (256, 1024, 4096, 16384)]
    assert times == sorted(times) and times[-1] > 8 * times[0]


def test_every_device_and_engine_has_laws():
    for name, target in devices().items():
        for engine in ENGINES:
            made = laws(name, engine, precision(target.wide), BF16)
            assert made.measured_on in tables.SYSTEMS
            assert made.measured_on == name or name in LIKE
            assert made.product(64, 4096, 4096, False) > 0
    with pytest.raises(ConfigError, match="engine='trt': not understood; use one of tensorrt-llm, vllm, sglang"):
        laws("h200", "trt", BF16, BF16)
    with pytest.raises(ConfigError, match="a100-80gb-sxm has no fp8 rate"):
        laws("a100-80gb-sxm", "vllm", FP8, BF16)


def test_a_step_is_estimated_in_less_than_a_millisecond():
    """Of CPU time, the fastest of some: neighbours on the machine do not count."""
    found, law = kernels(preset("llama3-70b"), Parallel(tp=8)), laws("h200", "tensorrt-llm", FP8, FP8)
    times = []
    for batch in range(1, 60):
        start = time.process_time()
        spent(found, Sequences(batch, 1, 1000), law, 8)
        times.append(time.process_time() - start)
    assert min(times) < 1e-3


def test_loads_of_experts_add_up():
    even = load(100, 8, 256, 1, 0, 1)
    assert even.rows == 800 and even.touched == 256
    assert load(1, 8, 256, 1, 0, 1).touched == 8
    uneven, half = load(1000, 8, 256, 8, 1.01, 1), load(1000, 8, 256, 8, 0, 1)
    assert uneven.rows > half.rows == 1000 and uneven.touched <= half.touched == 32


def test_small_weights_in_use_are_read_from_the_cache():
    from archcalc.laws.gemm import gemm_seconds

    law, _ = constants("gemm", "l40s", "tensorrt-llm", "bf16")
    cold = gemm_seconds(1, 4096, 4096, law, device("l40s"), "bf16", 16)
    warm = gemm_seconds(1, 4096, 4096, law, device("l40s"), "bf16", 16, in_use=33e6)
    assert law.resident > 0.3 and warm < 0.8 * cold


def test_architectures_split_keys_in_their_own_ways():
    assert decode_kernels("h200", "tensorrt-llm") != decode_kernels("b200", "tensorrt-llm")
    assert decode_kernels("h200", "vllm") == decode_kernels("h100-sxm", "sglang")


@installed
def test_attention_of_prompts_is_within_the_bars_too():
    names = ["h100-sxm", "h200", "a100-80gb-sxm", "b200", "l40s"]
    rows = [row for row in kernel_rows(names, ["tensorrt-llm"]) if row.law == "prefill"]
    assert [row.key.split("/")[0] for row in rows] == names
    assert all(row.passed for row in rows)


@installed
def test_products_are_within_the_bars_on_rows_that_no_fit_saw():
    rows = [row for row in kernel_rows(["h100-sxm", "h200"], ["tensorrt-llm"]) if row.law == "gemm"]
    assert [row.key for row in rows] == [
        "h100-sxm/tensorrt-llm/bf16", "h100-sxm/tensorrt-llm/fp8", "h200/tensorrt-llm/bf16", "h200/tensorrt-llm/fp8",
    ]  # fmt: skip
    assert all(row.passed and row.rows > 10_000 for row in rows)
    assert "reached" in rendered(rows) and "MISSED" not in rendered(rows)


@installed
@pytest.mark.parametrize("field", ["launch", "rate", "bandwidth"])
def test_a_wrong_constant_fails_the_bar(field):
    problem = next(p for p in problems("h200", "tensorrt-llm") if p.key == "h200/tensorrt-llm/bf16" and p.law == "gemm")
    law, _ = constants("gemm", "h200", "tensorrt-llm", "bf16")
    rows = problem.halves()[1][:2000]
    middle = lambda one: sorted(map(abs, problem.errors(one, rows)))[len(rows) // 2]  # noqa: E731
    assert middle(law) < 0.05 < middle(replace(law, **{field: 0.5 * getattr(law, field)}))


@installed
def test_no_row_is_fitted_and_reported_on():
    problem = next(p for p in problems("h200", "tensorrt-llm") if p.law == "all_reduce")
    fitted_rows, held_out = problem.halves()
    assert len(fitted_rows) + len(held_out) == len(problem.rows) and not set(map(id, fitted_rows)) & set(
        map(id, held_out)
    )
    assert problem.halves() == (fitted_rows, held_out)


def test_tables_that_are_not_installed_are_named(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ArchcalcError, match=r'aiconfigurator-core: not installed; pip install "archcalc\[tables\]"'):
        tables.systems()
    with pytest.raises(ConfigError, match="device='tpu-v5e': not understood"):
        kernel_rows(["tpu-v5e"])


def test_a_missed_bar_is_said():
    row = Row("gemm", "h200/vllm/bf16", 10, 0.1, 0.06, 0.1, (0.05, 0.15))
    assert not row.passed and "MISSED" in rendered([row])
    assert row._replace(bar=None).passed is None


def test_constants_are_of_kernels_alone():
    """No name of a model, and as few constants a set as a law has."""
    for law, sets in fitted().items():
        for key, row in sets.items():
            assert key.split("/")[0] in tables.SYSTEMS and key.split("/")[1] in ENGINES, (law, key)
            assert len(row) <= 11 and all(isinstance(value, float) for value in row.values())
