"""A report as tables in the terminal, as Markdown or as JSON."""

from __future__ import annotations

import json
from typing import Any

from archcalc.units import bytes_both, duration, scaled

FORMATS = ("table", "markdown", "json")
PROSE = ("formula", "convention", "source", "claim", "verdict", "why")  # headers of columns that hold text


def table(rows: list[list[Any]], headers: list[str], style: str) -> str:
    """Names and prose to the left; whole numbers, with commas, and measures to the right."""
    from tabulate import tabulate  # a third of the start-up time, and JSON needs none of it

    texts = [[f"{cell:,}" if type(cell) is int else cell for cell in row] for row in rows]
    align = ["left" if column == 0 or header in PROSE else "right" for column, header in enumerate(headers)]
    kind = "github" if style == "markdown" else "simple"
    return tabulate(texts, headers, tablefmt=kind, colalign=align if rows else None, disable_numparse=True)


def _parameters(report: dict[str, Any], style: str) -> str:
    rows = [[p["name"], p["formula"], p["per_layer"], p["layers"], p["total"]] for p in report["parameters"]["parts"]]
    rows.append(["total", "", "", "", report["parameters"]["total"]])
    if report["parameters"]["active"] != report["parameters"]["total"]:
        rows.append(["active a token", "", "", "", report["parameters"]["active"]])
    return table(rows, ["parameters", "formula", "one layer", "layers", "total"], style)


def _blocks(report: dict[str, Any], style: str) -> str:
    rows = [[name, *block.values()] for name, block in report["blocks"].items()]
    return table(rows, ["one block", "attention", "feed-forward", "norms", "total"], style)


def _passes(report: dict[str, Any], style: str) -> str:
    rows = []
    for run in report["passes"]:
        intensity = f"{run['intensity_flops_per_byte']:.4g} FLOPs/B"
        measures = [scaled(run["flops"], "FLOPs"), scaled(run["bytes"], "B"), intensity, duration(run["seconds"])]
        rows.append([run["name"], run["flops"], *measures, run["bound"]])
    headers = ["pass", "FLOPs", "", "bytes moved", "intensity", "time at the roofline", "bound"]
    return table(rows, headers, style)


def _parts(report: dict[str, Any], style: str) -> str:
    """One row a part and a column a pass: FLOPs, share of the time and its bound."""
    names = list(dict.fromkeys(part["name"] for run in report["passes"] for part in run["parts"]))
    by_pass = [{part["name"]: (part, run) for part in run["parts"]} for run in report["passes"]]
    rows = []
    for name in names:
        row: list[Any] = [name]
        for found in by_pass:
            part, run = found.get(name, (None, None))
            if part is None:
                row += ["", "", ""]
            else:
                row += [part["flops"], f"{part['seconds'] / run['seconds']:.1%}", part["bound"]]
        rows.append(row)
    headers = ["part"]
    for run in report["passes"]:
        headers += [f"{run['name']} FLOPs", "time", "bound"]
    return table(rows, headers, style)


def _memory(report: dict[str, Any], style: str) -> str:
    kv, memory, request = report["kv_cache"], report["memory"], report["request"]
    rows = [
        ["KV cache, one token", bytes_both(kv["bytes_per_token"])],
        ["KV cache, the request", bytes_both(kv["bytes"])],
    ]
    if "cross_bytes" in kv:
        rows.append(["cross cache, one source token", bytes_both(kv["cross_bytes_per_source_token"])])
        rows.append(["cross cache, the request", bytes_both(kv["cross_bytes"])])
    rows += [[f"weights in {name}", bytes_both(count)] for name, count in report["weight_bytes"].items()]
    fits = "fits" if memory["needed_bytes"] <= memory["device_bytes"] else "does not fit"
    room = f"{scaled(memory['needed_bytes'], 'B')} of {scaled(memory['device_bytes'], 'B')}: {fits}"
    rows.append([f"weights in {request['precision']} + caches on {request['device']}", room])
    return table(rows, ["memory", "bytes"], style)


def render(report: dict[str, Any], style: str = "table") -> str:
    """The report as `table`, `markdown` or `json` text."""
    if style == "json":
        return json.dumps(report, indent=2, ensure_ascii=False)
    request = ", ".join(f"{name} {value}" for name, value in report["request"].items() if name != "device_source")
    mark = "## " if style == "markdown" else ""
    sections = [
        f"{mark}{report['model']}: {report['parameters']['total']:,} parameters\n\n{request}",
        _parameters(report, style),
        _blocks(report, style),
        _memory(report, style),
        _passes(report, style),
        _parts(report, style),
        table([list(item) for item in report["conventions"].items()], ["what", "convention"], style),
        f"Device peaks: {report['request']['device_source']}.",
    ]
    return "\n\n".join(sections)
