"""A preset of each model type, for tests that would take too long with all of them."""

from archcalc.presets import names, row


def one_a_type() -> list[str]:
    """The first preset of each model_type."""
    found: dict[str, str] = {}
    for name in names():
        found.setdefault(row(name)["config"]["model_type"], name)
    return list(found.values())
