"""The worked examples: verdicts by hand, and a committed report that cannot go stale."""

from fractions import Fraction
from pathlib import Path

import pytest

from archcalc import worked_examples
from archcalc.claims import Claim
from archcalc.worked_claims import SECTIONS

REPORT = Path(__file__).resolve().parents[2] / "reports" / "worked-examples.md"
CLAIMS = {(title, c.subject): c for title, parts in SECTIONS.items() for part in parts for c in part()}


def verdict(said: str, derived, digit=None) -> str:
    return Claim("", said, derived, "", digit).verdict


@pytest.mark.parametrize(
    ("said", "derived", "expected"),
    [
        ("218,112,000", 218_112_000, "holds"),
        ("218,112,000", 218_112_001, "wrong"),
        ("4.2x", Fraction(42, 10), "holds"),
        ("4.2x", Fraction(425, 100), "rounded"),
        ("4.2x", Fraction(43, 10), "wrong"),
        ("549G", 549_755_813_888, "rounded"),
        ("549G", 550_000_000_000, "wrong"),
        ("~20%", Fraction(375, 1000), "wrong"),
        ("6.5%", Fraction(654, 10_000), "rounded"),
        ("67.2T", 65_970_697_666_560, "wrong"),
        ("~2.67x", Fraction(43, 16), "rounded"),  # within 1%
        ("2.67x", Fraction(43, 16), "wrong"),
        ("0", 0, "holds"),
    ],
)
def test_verdicts(said, derived, expected):
    assert verdict(said, derived) == expected


def test_a_digit_that_zeros_hide():
    assert verdict("2,100G", 2_061 * 10**9) == "wrong"
    assert verdict("2,100G", 2_061 * 10**9, digit=100) == "rounded"
    assert verdict("~1x", Fraction(13, 10), digit=Fraction(1, 10)) == "wrong"
    assert verdict("~2/3", Fraction(666, 1000), digit=Fraction(1, 100)) == "rounded"


def test_the_committed_report_is_what_the_calculator_says_now():
    assert REPORT.read_text(encoding="utf-8") == worked_examples.worked_examples()


def test_every_figure_is_there_once():
    assert len(CLAIMS) == sum(len(part()) for parts in SECTIONS.values() for part in parts) > 75
    text = REPORT.read_text(encoding="utf-8")
    for claim in CLAIMS.values():
        assert f" {claim.said} |" in text
        assert claim.why


@pytest.mark.parametrize(
    ("subject", "derived", "expected"),
    [
        ("the model", 8_030_261_248, "holds"),
        ("what grouped queries take off them", Fraction(3, 8), "wrong"),
        ("feed-forward, a layer", 6 * 4096**2 * 14336, "wrong"),
        ("32 layers", 65_970_697_666_560, "wrong"),
        ("attention scores, a layer", 4 * 4096**3, "rounded"),
        ("scores of 128K tokens, a layer", 4 * 131072**2 * 4096, "wrong"),
        ("saved a block by grouped queries", 2 * 4096 * 24 * 128, "rounded"),
        ("GPT-2: the model, made to match its paper", 124_439_808, "wrong"),
        ("power of the context in a cached token's FLOPs", 1, "holds"),
        ("ones in the mask of 4 tokens", 10, "holds"),
    ],
)
def test_derived_values_by_hand(subject, derived, expected):
    claim = next(claim for (_, name), claim in CLAIMS.items() if name == subject)
    assert (claim.derived, claim.verdict) == (derived, expected)


def test_width_that_would_match_the_depth():
    claim = next(claim for (_, name), claim in CLAIMS.items() if name.startswith("2 layers 32768"))
    assert claim.verdict == "wrong"
    assert 4.5 < claim.derived < 4.6
    assert "2 blocks of 16384" in claim.why


def test_writing_replaces_the_report_whole(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert worked_examples.main() == 0
    assert [path.name for path in (tmp_path / "reports").iterdir()] == ["worked-examples.md"]
    assert (tmp_path / "reports" / "worked-examples.md").read_text("utf-8") == REPORT.read_text("utf-8")
    assert "worked-examples.md" in capsys.readouterr().out
