"""A report as tables in the terminal, as Markdown or as JSON."""

from __future__ import annotations

import json
from typing import Any

from archcalc.counts import CONVENTIONS
from archcalc.memory import LONGEST
from archcalc.units import bytes_both, duration, scaled

FORMATS = ("table", "markdown", "json")
# Headers of columns that hold text.
PROSE = ("formula", "convention", "source", "claim", "verdict", "why", "with values", "what")


def table(rows: list[list[Any]], headers: list[str], style: str) -> str:
    """Names and prose to the left; whole numbers, with commas, and measures to the right."""
    from tabulate import tabulate  # a third of the start-up time, and JSON needs none of it

    texts = [[f"{cell:,}" if type(cell) is int else cell for cell in row] for row in rows]
    align = ["left" if column == 0 or header in PROSE else "right" for column, header in enumerate(headers)]
    kind = "github" if style == "markdown" else "simple"
    return tabulate(texts, headers, tablefmt=kind, colalign=align if rows else None, disable_numparse=True)


def _labels(parts: list[dict[str, Any]]) -> dict[tuple[str, str], str]:
    """What rows are called, by (name, kind of block): with the kind where several kinds have an op of that name."""
    kinds: dict[str, set[str]] = {}
    for part in parts:
        kinds.setdefault(part["name"], set()).add(part["block"])
    keys = dict.fromkeys((part["name"], part["block"]) for part in parts)
    return {(name, kind): f"{name} ({kind})" if len(kinds[name]) > 1 and kind else name for name, kind in keys}


def _parameters(report: dict[str, Any], style: str) -> str:
    parts = report["parameters"]["parts"]
    labels = _labels(parts)
    rows = [[labels[p["name"], p["block"]], p["formula"], p["per_layer"], p["layers"], p["total"]] for p in parts]
    rows.append(["total", "", "", "", report["parameters"]["total"]])
    if report["parameters"]["active"] != report["parameters"]["total"]:
        rows.append(["active a token", "", "", "", report["parameters"]["active"]])
    if report["parameters"]["buffers"]:
        rows.append(["buffers, no parameters", "", "", "", report["parameters"]["buffers"]])
    return table(rows, ["parameters", "formula", "one layer", "layers", "total"], style)


def _counts(report: dict[str, Any], style: str) -> str:
    """The conventions of model cards. Active ones only where a token does not use all."""
    found = report["parameters"]["conventions"]
    if all(count["total"] == count["active"] for count in found.values()):
        rows = [[name, count["total"], CONVENTIONS[name]] for name, count in found.items()]
        return table(rows, ["parameters counted as", "total", "what"], style)
    rows = [[name, count["total"], count["active"], CONVENTIONS[name]] for name, count in found.items()]
    return table(rows, ["parameters counted as", "total", "active a token", "what"], style)


def _notes(report: dict[str, Any]) -> list[str]:
    """What is not counted, and what was not said by the config."""
    found = [f"Left out: {words}." for words in report["left_out"]]
    if report["assumed"]:
        given = ", ".join(f"{name}={value}" for name, value in report["assumed"].items())
        found.append(f"Assumed, absent keys at the default of the Hugging Face class: {given}.")
    return ["\n".join(found)] if found else []


def _experts(report: dict[str, Any], style: str) -> list[str]:
    """Experts that a decode step reads, by batch."""
    if "experts" not in report:
        return []
    rows = []
    for row in report["experts"]:
        kind = f"{row['chosen']} of {row['experts']}, {row['layers']} layers"
        both = [scaled(row["bytes_most"], "B"), scaled(row["bytes_expected"], "B")]
        rows.append([kind, row["batch"], row["most"], f"{row['expected']:.5g}", *both])
    headers = ["experts", "batch", "distinct, at most", "expected", "bytes, at most", "expected bytes"]
    return [table(rows, headers, style)]


def _blocks(report: dict[str, Any], style: str) -> str:
    rows = [[name, *block.values()] for name, block in report["blocks"].items()]
    return table(rows, ["one block", "attention", "feed-forward", "norms", "total"], style)


def _passes(report: dict[str, Any], style: str) -> str:
    rows, unit = [], report["unit"]
    for run in report["passes"]:
        flops, intensity = run[unit.lower()], run[f"intensity_{unit.lower()}_per_byte"]
        measures = [
            scaled(flops, unit),
            scaled(run["bytes"], "B"),
            f"{intensity:.4g} {unit}/B",
            duration(run["seconds"]),
        ]
        rows.append([run["name"], flops, *measures, run["bound"]])
    headers = ["pass", unit, "", "bytes moved", "intensity", "time at the roofline", "bound"]
    return table(rows, headers, style)


def _eager(report: dict[str, Any], style: str) -> list[str]:
    """What a FLOP counter sees of transformers."""
    if "eager_flops" not in report:
        return []
    rows = [[name.replace("_", " "), count] for name, count in report["eager_flops"].items()]
    return [table(rows, ["eager transformers", "FLOPs"], style)]


def _parts(report: dict[str, Any], style: str) -> str:
    """One row a part and a column a pass: FLOPs, share of the time and its bound."""
    labels = _labels([part for run in report["passes"] for part in run["parts"]])
    by_pass = [{(part["name"], part["block"]): (part, run) for part in run["parts"]} for run in report["passes"]]
    rows, unit = [], report["unit"]
    for key, label in labels.items():
        row: list[Any] = [label]
        for found in by_pass:
            part, run = found.get(key, (None, None))
            if part is None:
                row += ["", "", ""]
            else:
                row += [part[unit.lower()], f"{part['seconds'] / run['seconds']:.1%}", part["bound"]]
        rows.append(row)
    headers = ["part"]
    for run in report["passes"]:
        headers += [f"{run['name']} {unit}", "time", "bound"]
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
    if "slope_bytes_per_token" in kv:
        rows.append(["KV cache, a token beyond every window", bytes_both(kv["slope_bytes_per_token"])])
        rows.append(["KV cache, full windows of a sequence", bytes_both(kv["constant_bytes"])])
    if "state_bytes" in kv:
        rows.append(["recurrent state, one sequence", bytes_both(kv["state_bytes_per_sequence"])])
        rows.append(["recurrent state, the request", bytes_both(kv["state_bytes"])])
    rows += [[f"weights in {name}", bytes_both(count)] for name, count in report["weight_bytes"].items()]
    if stored := report.get("checkpoint"):
        parts = {n: stored[n] for n in ("packed", "scales", "unquantized", "total") if n in stored}
        rows += [[f"checkpoint ({stored['method']}), {part}", bytes_both(count)] for part, count in parts.items()]
        if "not_derived" in stored:
            rows.append([f"checkpoint ({stored['method']})", stored["not_derived"]])
    fits = "fits" if memory["needed_bytes"] <= memory["device_bytes"] else "does not fit"
    room = f"{scaled(memory['needed_bytes'], 'B')} of {scaled(memory['device_bytes'], 'B')}: {fits}"
    rows.append([f"weights in {request['precision']} + caches on {request['device']}", room])
    return table(rows, ["memory", "bytes"], style)


def _reserved(report: dict[str, Any], style: str) -> list[str]:
    """What an engine reserves, in bytes of one rank, and what fits."""
    if "reserved" not in report:
        return []
    found, request = report["reserved"], report["request"]
    rank = "" if found["tp"] == 1 else f", each of {found['tp']} ranks"
    shown = {
        f"one token{rank}": bytes_both(found["rank_bytes_per_token"]),
        f"one block of {found['block_size']} tokens{rank}": bytes_both(found["rank_bytes_per_block"]),
        f"blocks of {request['context']:,} tokens": f"{found['blocks_per_request']:,}",
    }
    if found["windowed_blocks_per_request"] is not None:
        shown["blocks of a windowed layer"] = f"{found['windowed_blocks_per_request']:,}"
    if found["rank_state_bytes_per_request"]:
        shown[f"state of one sequence{rank}"] = bytes_both(found["rank_state_bytes_per_request"])
    shown[f"one request{rank}"] = bytes_both(found["rank_bytes_per_request"])
    shown[f"batch of {request['batch']}{rank}"] = bytes_both(found["rank_bytes"])
    if rank:
        shown[f"batch of {request['batch']}, all ranks"] = bytes_both(found["bytes"])
    if fits := found.get("fits"):
        shown[f"room{rank}"] = bytes_both(fits["room_bytes"])
        shown["fits: blocks"] = f"{fits['blocks']:,} of {found['block_size']} = {fits['tokens']:,} tokens"
        if fits["concurrency"] is not None:
            shown[f"fits: requests of {request['context']:,} tokens"] = (
                f"{fits['concurrency']:.2f}x = {fits['requests']:,}"
            )
        longest = fits["longest_context"]
        shown["fits: one request of"] = "any length" if longest >= LONGEST else f"{longest:,} tokens"
    return [table([list(item) for item in shown.items()], ["KV cache, reserved", "bytes"], style)]


def explanation(found: dict[str, Any], style: str) -> str:
    """The summands of one number and their sum."""
    rows = [[t["name"], t["formula"], t["values"], t["one"], t["layers"], t["total"]] for t in found["terms"]]
    rows.append(["sum", "", "", "", "", found["sum"]])
    if found["bits"]:
        rows.append([f"x {found['bits']} bits / 8", "", "", "", "", found["total"]])
    headers = [found["quantity"], "formula", "with values", "one layer", "layers", "total"]
    legend = "\n".join(f"{letter}  {meaning}" for letter, meaning in found["legend"].items())
    return f"{table(rows, headers, style)}\n\n{found['quantity']} = {found['total']:,} {found['unit']}\n\n{legend}"


def render(report: dict[str, Any], style: str = "table") -> str:
    """The report as `table`, `markdown` or `json` text; with an explanation, tables show only that."""
    if style == "json":
        return json.dumps(report, indent=2, ensure_ascii=False)
    request = ", ".join(f"{name} {value}" for name, value in report["request"].items() if name != "device_source")
    mark = "## " if style == "markdown" else ""
    title = f"{mark}{report['model']}: {report['parameters']['total']:,} parameters\n\n{request}"
    if "explain" in report:
        return f"{title}\n\n{explanation(report['explain'], style)}"
    sections = [
        title,
        *_notes(report),
        _parameters(report, style),
        _counts(report, style),
        _blocks(report, style),
        _memory(report, style),
        *_reserved(report, style),
        *_experts(report, style),
        _passes(report, style),
        *_eager(report, style),
        _parts(report, style),
        table([list(item) for item in report["conventions"].items()], ["what", "convention"], style),
        f"Device peaks: {report['request']['device_source']}.",
    ]
    return "\n\n".join(sections)


def render_training(found: dict[str, Any], style: str = "table") -> str:
    """The numbers of a training step."""
    if style == "json":
        return json.dumps(found, indent=2, ensure_ascii=False)
    mark = "## " if style == "markdown" else ""
    title = f"{mark}{found['model']}: one training step\n\n" + ", ".join(f"{n} {v}" for n, v in found["step"].items())
    flops = [[name, count, scaled(count, "FLOPs")] for name, count in found["flops"].items()]
    exact = found["flops"]["causal"]
    thumb = [[name, row["n"], row["flops"], f"{row['flops'] / exact:.4f}"] for name, row in found["six_n_d"].items()]
    held = [[name.replace("_", " "), bytes_both(count)] for name, count in found["bytes"].items()]
    held.append(["total", bytes_both(found["total_bytes"])])
    return "\n\n".join(
        [
            title,
            table(flops, ["a step", "FLOPs", ""], style),
            table(thumb, ["6ND, N counted as", "N", "6ND", "of causal"], style),
            table(held, ["memory", "bytes"], style),
            table([list(item) for item in found["conventions"].items()], ["what", "convention"], style),
        ]
    )


def render_against(found: dict[str, Any], style: str = "table") -> str:
    """Our parameters and those of transformers, side by side."""
    if style == "json":
        return json.dumps(found, indent=2, ensure_ascii=False)
    rows = [[r["part"], r["ours"], r["theirs"], r["ours"] - r["theirs"]] for r in found["rows"]]
    rows += [[f"not counted: {name}", "", count, ""] for name, count in found["towers"].items()]
    verdict = "agrees" if found["agree"] else "DIFFERS"
    text = table(rows, ["parameters", "archcalc", f"transformers {found['version']}", "difference"], style)
    return f"{found['model']}: {verdict}\n\n{text}"
