"""Every experiment in a setting of seconds: what it claims holds, and its checkers notice what does not."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import sympy
import torch

from archcalc.cost import parameters
from archcalc.latency import Machine
from archcalc.presets import preset
from export.bench import Timing
from export.compare import MEDIAN_BAR
from models import build
from models.experiments import (
    EXPERIMENTS,
    cli,
    crossover,
    depth_width,
    encoder_once,
    levers,
    norm_placement,
    report,
    translation,
)
from models.experiments.report import Claim, Found
from models.experiments.timing import medians


@pytest.fixture(autouse=True)
def one_thread():
    """Tiny models are slower on several threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def failing(claims: list[Claim]) -> list[str]:
    """What fails of what was claimed."""
    return [claim.says for claim in claims if not claim.holds]


def untimed(claims: list[Claim]) -> list[Claim]:
    """Without those that the machine's neighbours can make fail."""
    return [claim for claim in claims if not claim.timed]


def drawn(found: Found) -> None:
    """The picture can be made."""
    assert report.picture(found).axes


# Norm placement


@pytest.fixture(scope="module")
def placements() -> norm_placement.Result:
    return norm_placement.run(norm_placement.Setting(depths=(2, 12, 32), seeds=8, hidden_size=32))


def test_norm_placement_claims_hold(placements):
    found = norm_placement.report(placements)
    assert failing(found.claims) == []
    drawn(found)


def test_the_input_gradient_is_that_of_finite_differences():
    setting = norm_placement.Setting(batch=1, tokens=3, hidden_size=8)
    model = norm_placement.initialised(build(norm_placement.config(setting, "DeepNorm", 2)).double(), "DeepNorm", 0)
    table = model.embed_tokens.weight

    def value() -> float:
        weights = torch.randn((1, 3, 8), generator=torch.Generator().manual_seed(1_000_000))
        with torch.no_grad():
            return (weights * model.trunk(norm_placement.words(setting))).sum().item()

    slopes = []
    for flat in range(table.numel()):
        ends = []
        for step in (1e-3, -1e-3):
            with torch.no_grad():
                table.view(-1)[flat] += step
                ends.append(value())
                table.view(-1)[flat] -= step
        slopes.append((ends[0] - ends[1]) / 2e-3)
    assert norm_placement.gradient_norms(model, setting, 0)[0] == pytest.approx(float(np.linalg.norm(slopes)), rel=2e-3)


@pytest.mark.parametrize("depth", [2, 48])
def test_deepnorm_scales_the_residual_by_depth(depth):
    found = {p: norm_placement.config(norm_placement.Setting(), p, depth) for p in norm_placement.PLACEMENTS}
    alphas = {placement: {block.residual.alpha for block in c.decoder.layers} for placement, c in found.items()}
    assert alphas == {"pre-LN": {1.0}, "post-LN": {1.0}, "DeepNorm": {(2 * depth) ** 0.25}}


def test_deepnorm_without_its_initial_weights_does_not_keep_the_gradient(placements):
    norms = dict(placements.norms)
    for where in (norm_placement.INPUT, norm_placement.FIRST, norm_placement.LAST):
        norms["DeepNorm", where] = norms["post-LN", where]
    assert any("DeepNorm" in says for says in failing(norm_placement.claims(replace(placements, norms=norms))))


# Depth and width


SMALL = depth_width.Setting(budget=2_000_000, context=256, prompt=32)
LAW = Machine(4e10, 2e11, 1.0, 3e-11, 1.5e-10, 1e-6)


def rows(setting: depth_width.Setting, factor: float) -> list[depth_width.Row]:
    """As if each point had taken `factor` times what the law says."""
    found = []
    for depth in setting.depths:
        config = depth_width.config(setting, depth)
        nothing = [Timing(point, ((1.0,),)) for point in setting.points]
        predicted = depth_width.row(config, nothing, setting, LAW).predicted
        timings = [Timing(p, ((factor * s,),)) for p, s in zip(setting.points, predicted, strict=True)]
        found.append(depth_width.row(config, timings, setting, LAW))
    return found


@pytest.mark.parametrize("setting", [depth_width.Setting(), SMALL])
def test_depth_width_claims_hold_of_a_machine_that_is_the_law(setting):
    found = depth_width.report(depth_width.Result(setting, rows(setting, 1.05)))
    assert failing(found.claims) == []
    drawn(found)


def test_depth_width_notices_a_prediction_beyond_the_bars():
    claims = depth_width.claims(depth_width.Result(SMALL, rows(SMALL, 1 + 2 * MEDIAN_BAR)))
    assert len(failing(claims)) == 1 and "prediction" in failing(claims)[0]


def test_a_cache_at_equal_parameters_grows_as_layers_times_width():
    for row in rows(SMALL, 1.0):
        assert row.kv_bytes == 4 * 2 * row.depth * row.config.hidden_size * SMALL.context
        assert parameters(row.config) == pytest.approx(SMALL.budget, rel=0.005)


@pytest.mark.slow
def test_depth_width_is_measured():
    setting = depth_width.Setting(depths=(2, 8), budget=2_000_000, context=128, prompt=32, rounds=3, seconds=5)
    found = depth_width.run(setting)
    assert all(seconds > 0 for row in found.rows for seconds in row.measured)
    assert failing(untimed(depth_width.claims(found))) == []


# Levers


@pytest.fixture(scope="module")
def pulled() -> levers.Result:
    return levers.run(
        levers.Setting(layers=2, hidden_size=64, heads=4, vocab_size=128, context=96, window=16, rounds=2)
    )


def test_levers_claims_hold(pulled):
    found = levers.report(pulled)
    assert failing(untimed(found.claims)) == []
    drawn(found)


def test_levers_count_what_is_known_of_llama3(pulled):
    big = pulled.big
    assert big["8 of 32 key heads"].parameters == 8_030_261_248
    assert big[levers.BASE].parameters - big[levers.TIED].parameters == 128_256 * 4096
    assert big["8 of 32 key heads"].cache_bytes == 131_072 * levers.BIG_CONTEXT
    assert big[levers.EVERY].cache_bytes * 8 == big[levers.BASE].cache_bytes


def test_levers_notice_a_cache_of_another_size(pulled):
    wrong = replace(pulled.small[levers.EVERY], found_bytes=pulled.small[levers.BASE].cache_bytes)
    claims = levers.claims(replace(pulled, small=pulled.small | {levers.EVERY: wrong}))
    assert failing(untimed(claims)) == ["cache bytes derived are those that the cache has"]


# Crossover


@pytest.mark.parametrize("name", crossover.decoders())
def test_attention_overtakes_at_this_token_and_not_before(name):
    layers = crossover.Layers(preset(name))
    for dense in (True, False):
        tokens = crossover.search(layers, dense)
        if tokens is None:
            assert not layers.overtaken(crossover.LONGEST, dense)
            continue
        assert layers.overtaken(tokens, dense)
        earlier = {tokens - 1, *(tokens * n // 50 for n in range(1, 50))}
        assert not any(layers.overtaken(one, dense) for one in earlier if one)


CHOSEN = [
    "llama3-8b", "gpt2", "gemma3-1b", "mistral-7b-v0.1", "phi-4-mini", "deepseek-v3", "deepseek-v3.2", "glm-4.5",
    "mixtral-8x7b", "qwen3-next-80b-a3b", "llama4-scout", "deepseek-v4-flash", "mamba-130m",
]  # fmt: skip


@pytest.fixture(scope="module")
def crossed() -> list[crossover.Row]:
    return crossover.run(CHOSEN)


def test_crossover_claims_hold(crossed):
    found = crossover.report(crossed)
    assert failing(found.claims) == []
    drawn(found)


def test_crossovers_that_can_be_computed_by_hand(crossed):
    of = {row.name: row for row in crossed}
    matrices = 2 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336)
    equal = matrices // (4 * 4096)
    assert equal * 4 * 4096 == matrices  # they are equal at a whole T, and one token later attention is more
    assert (of["llama3-8b"].dense, of["llama3-8b"].causal) == (equal + 1, 2 * equal)
    assert of["mistral-7b-v0.1"].causal is None and of["mistral-7b-v0.1"].dense == of["llama3-8b"].dense
    assert of["mamba-130m"].kind == "no attention" and of["mamba-130m"].formula is None
    assert of["llama4-scout"].causal and "chunk" in of["llama4-scout"].kind


def test_the_formula_is_the_one_on_paper():
    D, F, H, K, N = (sympy.Symbol(name, integer=True, positive=True) for name in "DFHKN")
    found = crossover.solved(preset("llama3-8b"), dense=True).formula()
    assert sympy.simplify(found - D * (3 * F + 2 * H * K + 2 * H * N) / (2 * H * N)) == 0


def test_crossover_notices_a_formula_that_disagrees(crossed):
    wrong = [replace(crossed[0], agrees=False), *crossed[1:]]
    assert failing(crossover.claims(wrong)) == ["sympy's T is the integers' T"]


# Encoder once


@pytest.fixture(scope="module")
def sentences() -> encoder_once.Result:
    return encoder_once.run(encoder_once.Setting(layers=2, hidden_size=32, lengths=(3, 8), rounds=1))


def test_encoder_once_claims_hold(sentences):
    found = encoder_once.report(sentences)
    assert failing(untimed(found.claims)) == []
    drawn(found)


def test_encoder_once_notices_a_trip_and_a_flop_too_many(sentences):
    key = (encoder_once.BOTH, 8)
    seen = replace(sentences.seen[key], trips=(2, 8), flops=sentences.seen[key].flops + 1)
    claims = encoder_once.claims(replace(sentences, seen=sentences.seen | {key: seen}))
    assert len(failing(untimed(claims))) == 2


# Translation


LITTLE = translation.Setting(train=60, test=20, limit=100, hidden_size=32, intermediate_size=64, layers=1, steps=3)


@pytest.fixture(scope="module")
def translated() -> translation.Result:
    return translation.run(LITTLE)


def test_translation_models_are_of_equal_size_and_see_no_held_out_number(translated):
    claims = translation.claims(translated)
    assert failing(claims[:2]) == []
    for setting in (LITTLE, translation.Setting()):
        sizes = [parameters(config) for config in translation.configs(setting, setting.vocab_size).values()]
        assert max(sizes) <= 1.01 * min(sizes)
    drawn(translation.report(translated))


def test_translation_is_the_same_every_time(translated):
    again = translation.run(LITTLE)
    for kind, one in translated.learned.items():
        assert again.learned[kind].losses == one.losses
        assert again.learned[kind].translations == one.translations


@pytest.mark.parametrize("kind", [translation.PAIR, translation.SINGLE])
def test_translation_learns_by_heart(kind):
    """A dozen numbers, the same to test on: the losses, the masks and both ways of decoding must fit together."""
    setting = replace(LITTLE, train=12, steps=150, batch=12, hidden_size=64, warm_up=10)
    data = translation.corpus(12, 1, 100, setting.vocab_size, 0)
    data = replace(data, test=data.train)
    config = translation.configs(setting, data.vocab_size)[kind]
    learned = translation.learn(kind, config, setting, data)
    assert learned.translations == [pair.german for pair in data.test]
    assert learned.losses[0] > 1 > 0.1 > learned.losses[-1]


def test_translation_scores(translated):
    right = replace(translated.learned[translation.PAIR], translations=list(translated.truth))
    result = replace(translated, learned=translated.learned | {translation.PAIR: right})
    assert (result.exact(translation.PAIR), round(result.bleu(translation.PAIR)[0], 6)) == (1.0, 100.0)
    assert "tok:char" in result.bleu(translation.PAIR)[1]
    assert failing(translation.claims(result))  # the other one has learned nothing in three steps


# Timing, writing, the command


def test_medians_take_turns():
    order: list[str] = []
    found = medians({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, rounds=2, repeat=2)
    assert "".join(order) == "aaabbb" * 2 and set(found) == {"a", "b"}


def example(holds: bool = True) -> Found:
    def draw(figure) -> None:
        figure.subplots().plot([1, 2], [3, 4], label="line")

    return Found("Title", ["A paragraph."], [Claim("one is one", "1", holds)], draw, "A line", "none")


def test_a_report_says_how_it_was_made_and_shows_its_picture(tmp_path):
    path = report.write(example(), "example", tmp_path, "a command", 1.0)
    text = path.read_text(encoding="utf-8")
    for part in (
        "# Title",
        "](experiment-example.svg)",
        "A paragraph.",
        "`a command`",
        "seeds: none",
        "torch 2",
        "cores",
    ):
        assert part in text
    assert sorted(p.name for p in tmp_path.iterdir()) == ["experiment-example.md", "experiment-example.svg"]


def test_the_same_numbers_draw_the_same_file(tmp_path):
    drawings = []
    for folder in ("first", "second"):
        report.write(example(), "example", tmp_path / folder, "", 1.0)
        drawings.append((tmp_path / folder / "experiment-example.svg").read_bytes())
    assert drawings[0] == drawings[1] and len(drawings[0]) < report.LARGEST_PICTURE


@pytest.mark.parametrize("holds", [True, False])
def test_the_exit_code_says_whether_claims_hold(holds, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(norm_placement, "experiment", lambda: example(holds))
    assert cli.main(["norm-placement", "--out", str(tmp_path)]) == (0 if holds else 1)
    assert ("holds" if holds else "FAILS") in capsys.readouterr().out


def test_list_names_all(capsys):
    assert cli.main(["--list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(EXPERIMENTS)


@pytest.mark.parametrize("argv", [["no-such"], [], ["norm-placement", "--out", __file__]])
def test_what_cannot_be_done_is_one_line_and_exit_code_2(argv, monkeypatch, capsys):
    monkeypatch.setattr(norm_placement, "experiment", example)
    try:
        code = cli.main(argv)
    except SystemExit as stop:
        code = stop.code
    assert code == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_the_list_needs_no_picture_library():
    script = "import sys; sys.modules['matplotlib'] = None\nfrom models.experiments.cli import main\n"
    script += "sys.exit(10 * main(['--list']) + main(['norm-placement']))"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert found.returncode == 2 and "matplotlib" in found.stderr and "pip install" in found.stderr
