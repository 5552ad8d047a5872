"""Fit the laws of kernels to measured tables: `python -m archcalc.laws.fit [DEVICE ...]` writes `fitted.json`.

Half of a table's rows is fitted, by least squares of log(predicted / measured). One set of constants serves a device,
an engine and a number format: no model and no size has constants of its own. `archcalc validate` reports on the rest.
"""

from __future__ import annotations

import json
import math
import sys
from dataclasses import asdict, astuple
from pathlib import Path
from typing import Any

from archcalc.files import replaced_file
from archcalc.laws import tables
from archcalc.laws.problems import Problem, problems

FITTED = Path(__file__).with_name("fitted.json")
MOST_ROWS = 2500  # that a fit reads


def fitted_law(problem: Problem) -> Any:
    """The constants, above 0, that explain half of the rows best; to four digits, as more would be noise."""
    import numpy as np
    from scipy.optimize import least_squares

    kind, begin = type(problem.start), astuple(problem.start)
    free = [index for index, value in enumerate(begin) if value]
    rows = problem.halves()[0][:MOST_ROWS]

    def law(logs) -> Any:
        values = list(begin)
        for index, value in zip(free, logs, strict=True):
            values[index] = math.exp(value)
        return kind(*values)

    def errors(logs):
        return np.log1p(problem.errors(law(logs), rows))

    bounds = np.log([[1e-4, problem.most[index]] for index in free]).T
    first = np.log([begin[index] for index in free])
    how = {"loss": "soft_l1", "f_scale": 0.1, "xtol": 1e-4, "max_nfev": 60}
    found = law(least_squares(errors, first, bounds=tuple(bounds), **how).x)
    return kind(*(float(f"{value:.4g}") for value in astuple(found)))


def main(arguments: list[str]) -> int:
    found: dict[str, dict[str, Any]] = json.loads(FITTED.read_text()) if arguments and FITTED.exists() else {}
    for name in arguments or tables.SYSTEMS:
        for engine in tables.ENGINES:
            for problem in problems(name, engine):
                found.setdefault(problem.law, {})[problem.key] = asdict(fitted_law(problem))
                print(problem.law, problem.key, len(problem.rows), file=sys.stderr)
    with replaced_file(FITTED) as new:
        new.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
