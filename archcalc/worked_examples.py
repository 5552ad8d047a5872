"""Two worked examples from teaching material, each figure beside what the calculator derives for it.

`python -m archcalc.worked_examples` writes reports/worked-examples.md.
"""

from __future__ import annotations

import sys
from pathlib import Path

from archcalc.files import replaced_file
from archcalc.render import table
from archcalc.worked_claims import FIRST, SECOND, SECTIONS

TARGET = Path("reports") / "worked-examples.md"
HEAD = """\
# Worked examples, checked

Written by `python -m archcalc.worked_examples`. Each figure of two teaching documents, "{first}" and "{second}",
beside the value that the calculator derives for it. `holds`: equal. `rounded`: less than one of its last digit
away, or 1% where the document says "about". `wrong`: neither.

{count} figures: {verdicts}.

FLOPs are matrix products, 2 a multiply-add, one sequence, every (query, key) pair counted, as in the documents. Not
checked, because no architecture says it: what the documents state about loss, speed of norms, training stability, the
depth that a task needs, and the number of lines of code.
"""


def worked_examples() -> str:
    """The report as Markdown."""
    found = {title: [claim for part in parts for claim in part()] for title, parts in SECTIONS.items()}
    verdicts = [claim.verdict for claims in found.values() for claim in claims]
    counts = ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in ("holds", "rounded", "wrong"))
    out = [HEAD.format(first=FIRST, second=SECOND, count=len(verdicts), verdicts=counts)]
    for title, claims in found.items():
        rows = [[claim.subject, claim.said, claim.shown, claim.verdict, claim.why] for claim in claims]
        out += [f"## {title}\n", table(rows, ["claim", "said", "derived", "verdict", "why"], "markdown"), ""]
    return "\n".join(out)


def main() -> int:
    """Write the report under the current folder: whole or not at all."""
    with replaced_file(TARGET) as new:
        new.write_text(worked_examples(), encoding="utf-8")
    print(f"wrote {TARGET}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
