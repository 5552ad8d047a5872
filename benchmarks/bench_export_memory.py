"""How much memory and time an export takes, beside a plain write: `python benchmarks/bench_export_memory.py`.

Llama 3 8B with random weights, or one of its smaller kin where the disk has too little room; `--checkpoint` writes
random bf16 shards first and exports those. An export runs in a process of its own; its peak is what the system has
counted as resident, mapped files too. Its time, with everything on the disk, is held beside a plain write of as many
bytes, before and after it, as a disk's speed drifts. Exits with 1 if the peak is above the bar.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from archcalc.cost import parameters  # noqa: E402
from archcalc.presets import preset  # noqa: E402
from archcalc.render import table  # noqa: E402

BAR = 3e9  # bytes
PRESETS = ("llama3-8b", "llama3.2-1b", "smollm2-135m")
BLOCK, SHARD = 2**24, 1_000_000_000  # bytes
EXPORT = """
import sys, time
from pathlib import Path
from archcalc.presets import preset
from export.build import build
from export.source import source
name, weights, precision, out, link = sys.argv[1:]
config = preset(name)
build(config, Path(out), precision, (1024,), source=source(config, weights), link_weights=link == "link")
"""
OPEN = "import sys; from export.build import open_build; open_build(sys.argv[1])"


def child(*arguments: str) -> tuple[float, float, int]:
    """(seconds, seconds of processor time, bytes resident at most) of a fresh interpreter that must end well."""
    start = time.perf_counter()
    process = os.posix_spawn(sys.executable, [sys.executable, "-c", *arguments], os.environ | {"PYTHONPATH": str(ROOT)})
    _, status, usage = os.wait4(process, 0)
    if status:
        sys.exit(f"the export ended with {os.waitstatus_to_exitcode(status)}")
    scale = 1 if sys.platform == "darwin" else 1024
    return time.perf_counter() - start, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * scale


def plain_write(folder: Path, count: int) -> float:
    """Seconds to write so many bytes and have them on the disk."""
    path, block = folder / "plain.bin", os.urandom(BLOCK)
    start = time.perf_counter()
    with path.open("wb", buffering=0) as stream:
        for begin in range(0, count, BLOCK):
            stream.write(block[: count - begin])
        os.fsync(stream.fileno())
    seconds = time.perf_counter() - start
    path.unlink()
    return seconds


def write_checkpoint(folder: Path, name: str) -> None:
    """Random bf16 weights as Hugging Face stores a Llama, in shards."""
    import torch
    from safetensors.torch import save_file

    from models.builder import skeleton

    theirs = {"self_attn_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"}
    folder.mkdir(parents=True)
    shard, held, where = {}, 0, {}

    def close() -> None:
        file = f"model-{len(set(where.values())) + 1:05}.safetensors"
        save_file(shard, folder / file)
        where.update(dict.fromkeys(shard, file))
        shard.clear()

    for ours, tensor in skeleton(preset(name), dtype=torch.bfloat16).named_parameters():
        found = ours if ours.startswith("lm_head") else f"model.{ours}"
        for old, new in theirs.items():
            found = found.replace(f".{old}.", f".{new}.")
        shard[found] = torch.empty(tensor.shape, dtype=torch.bfloat16).normal_(std=0.02)
        held += shard[found].nbytes
        if held > SHARD:
            close()
            held = 0
    if shard:
        close()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))


def measured(name: str, weights: str, precision: str, folder: Path, link: bool) -> list:
    """Peak bytes, seconds of the export and of processor time in it, seconds of opening it, bytes written."""
    out = folder / "build"
    seconds, busy, peak = child(EXPORT, name, weights, precision, str(out), "link" if link else "copy")
    start = time.perf_counter()
    for path in out.iterdir():
        with path.open("rb") as stream:
            os.fsync(stream.fileno())
    seconds += time.perf_counter() - start
    count = 0 if link else sum(path.stat().st_size for path in out.iterdir())
    opening, _, _ = child(OPEN, str(out))
    shutil.rmtree(out)
    return [peak, seconds, busy, opening, count]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", help="instead of the largest that the disk has room for")
    parser.add_argument("--precision", nargs="+", default=["fp16"])
    parser.add_argument("--checkpoint", action="store_true", help="export from shards on the disk, in bf16")
    parser.add_argument("--link-weights", action="store_true", help="link the shards; the precision must be bf16")
    parser.add_argument("--folder", type=Path, default=ROOT / "out", help="on the disk that counts")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    needed = {name: 2 * parameters(preset(name)) * (2 + args.checkpoint) for name in PRESETS}
    free = shutil.disk_usage(args.folder).free
    name = args.preset or next((one for one, count in needed.items() if count < free), PRESETS[-1])
    folder = Path(tempfile.mkdtemp(prefix="bench-", dir=args.folder))
    rows, worst = [], 0
    try:
        if args.checkpoint:
            # In a process of its own, too: the system counts what a parent has held as its children's.
            writer = multiprocessing.get_context("spawn").Process(
                target=write_checkpoint, args=(folder / "checkpoint", name)
            )
            writer.start()
            writer.join()
            if writer.exitcode:
                sys.exit(f"the checkpoint's writer ended with {writer.exitcode}")
        weights = str(folder / "checkpoint") if args.checkpoint else "random"
        disk = plain_write(folder, 2 * parameters(preset(name)))
        for precision in args.precision:
            peak, seconds, busy, opening, count = measured(name, weights, precision, folder, args.link_weights)
            plain, worst = plain_write(folder, count), max(worst, peak)
            verdict = "pass" if peak <= BAR else "FAIL"
            rows.append(
                [precision, f"{peak / 1e9:.2f} GB", f"{seconds:.1f} s", f"{busy:.1f} s", f"{count / 1e9:.2f} GB"]
            )
            rows[-1] += [f"{plain:.1f} s", f"{opening:.1f} s", verdict]
    finally:
        shutil.rmtree(folder)
    headers = [
        name,
        "peak memory",
        "export",
        "processor",
        "written",
        "plain write",
        "opening",
        f"at most {BAR / 1e9:.0f} GB",
    ]
    print(table(rows, headers, "table"))
    print(f"\nplain write of the weights in 16 bits, before all: {disk:.1f} s; weights: {weights}")
    return 0 if worst <= BAR else 1


if __name__ == "__main__":
    sys.exit(main())
