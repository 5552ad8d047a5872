"""How fast exported graphs run on a CPU, against limits and other exporters: `python benchmarks/bench_export.py`.

A Llama-shaped model of 112M parameters (hidden size 768, 10 layers, 12 query and 4 key heads, vocabulary 32,000) with
random weights, on all cores. Everything takes turns in one process, as a machine's speed drifts within minutes; a
turn's median counts once. Exits with 1 if a bar is missed.

Limits, measured in the same turns:
- reading: the bytes that a step must read, weights and cache, summed by torch on all cores. The fastest plain read.
- products: the model's matrix products alone, in one graph of ONNX Runtime.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import torch
from onnx import TensorProto, helper, numpy_helper

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from archcalc.files import replaced_file  # noqa: E402
from archcalc.hf import load_config  # noqa: E402
from archcalc.render import table  # noqa: E402
from benchmarks.peers import GenaiSteps, genai_export, optimum_export, optimum_step  # noqa: E402
from export.build import PACKAGES, Build, build, open_build  # noqa: E402
from export.graph import every_state  # noqa: E402
from export.runtimes.onnxruntime_ import OnnxRuntimeEngine, usable_cores  # noqa: E402
from models import load  # noqa: E402
from models.provenance import made  # noqa: E402

OUT = ROOT / "out" / "bench-export"
SIZES = {"vocab_size": 32_000, "hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 10}
HEADS = {"num_attention_heads": 12, "num_key_value_heads": 4}
CAPACITY, PROMPT = 1024, 128
WARM_UP_SECONDS, TURN_SECONDS = 0.1, 0.1  # the session before spins for 50 ms and would take a core
Step = Callable[[], object]


def checkpoint() -> Path:
    """The model as Hugging Face would store it, with a tokenizer of its vocabulary, which GenAI asks for."""
    folder = OUT / "checkpoint"
    if (folder / "tokenizer.json").exists():
        return folder
    from tokenizers import Tokenizer, models
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(0)
    config = LlamaConfig(**SIZES, **HEADS, max_position_embeddings=2048, tie_word_embeddings=False)
    LlamaForCausalLM(config).save_pretrained(folder)
    words = {f"t{i}": i for i in range(SIZES["vocab_size"])}
    plain = Tokenizer(models.WordLevel(words, unk_token="t0"))
    PreTrainedTokenizerFast(tokenizer_object=plain, bos_token="t1", eos_token="t2").save_pretrained(folder)
    return folder


def ours(source: Path, precision: str, target: str) -> Build:
    """Our build, made once."""
    folder = OUT / f"{precision}-{target}"
    if (folder / "manifest.json").exists():
        return open_build(folder)
    config = load_config(source)
    return build(config, folder, precision, (CAPACITY,), load(source, config), {"kind": "random", "seed": 0}, target)


def bytes_read(made: Build, past: int) -> int:
    """Bytes of the weights that a step multiplies by, and of the keys and values of `past` tokens."""
    graph = onnx.load(made.graph(CAPACITY), load_external_data=False).graph
    external = {t.name: t for t in graph.initializer if t.data_location == TensorProto.EXTERNAL}
    read = {name for node in graph.node if node.op_type != "Stem" for name in node.input if name in external}
    lengths = [int(entry.value) for n in read for entry in external[n].external_data if entry.key == "length"]
    kept = sum(int(np.prod(s.shape)) for s in every_state(made.config, past))
    return sum(lengths) + kept * made.precision.numpy.itemsize


def reading(nbytes: int) -> Step:
    """Summing so many bytes on all cores."""
    torch.set_num_threads(usable_cores())
    content = torch.ones(nbytes // 4)
    return lambda: content.sum()


def products(tokens: int) -> Step:
    """The matrix products of a pass over so many tokens, the head's for one, alone in a graph."""
    d, f, v = SIZES["hidden_size"], SIZES["intermediate_size"], SIZES["vocab_size"]
    kv = d * HEADS["num_key_value_heads"] // HEADS["num_attention_heads"]
    layer = [(d, d), (d, kv), (d, kv), (d, d), (d, f), (d, f), (f, d)]
    shapes = [(*shape, tokens) for shape in layer * SIZES["num_hidden_layers"]] + [(d, v, 1)]
    rng, value = np.random.default_rng(0), helper.make_tensor_value_info
    weights = [
        numpy_helper.from_array(rng.standard_normal((i, o), np.float32), f"w{n}") for n, (i, o, _) in enumerate(shapes)
    ]
    nodes = [helper.make_node("MatMul", [f"x{i}_{t}", f"w{n}"], [f"y{n}"]) for n, (i, _, t) in enumerate(shapes)]
    rows = sorted({(i, t) for i, _, t in shapes})
    inputs = [value(f"x{i}_{t}", TensorProto.FLOAT, [t, i]) for i, t in rows]
    outputs = [value(f"y{n}", TensorProto.FLOAT, [t, o]) for n, (_, o, t) in enumerate(shapes)]
    graph = helper.make_graph(nodes, "products", inputs, outputs, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    options = ort.SessionOptions()
    options.intra_op_num_threads = usable_cores()
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    for i, t in rows:
        binding.bind_cpu_input(f"x{i}_{t}", rng.standard_normal((t, i), np.float32))
    for n, (_, o, t) in enumerate(shapes):
        binding.bind_ortvalue_output(f"y{n}", ort.OrtValue.ortvalue_from_shape_and_type((t, o), np.float32))
    return lambda: session.run_with_iobinding(binding)


def turn(step: Step) -> float:
    """Median seconds of a step; a step may say how long it took itself."""
    warm, samples = time.perf_counter() + WARM_UP_SECONDS, []
    while time.perf_counter() < warm:
        step()
    end = time.perf_counter() + TURN_SECONDS
    while time.perf_counter() < end or len(samples) < 3:
        start = time.perf_counter()
        own = step()
        samples.append(own if isinstance(own, float) else time.perf_counter() - start)
    return statistics.median(samples)


def measured(steps: dict[str, Step], turns: int) -> dict[str, list[float]]:
    """Seconds of each step's turns; all take one in every round."""
    found: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(turns):
        for name, step in steps.items():
            found[name].append(turn(step))
    return found


def steps(past: int, peers: bool) -> dict[str, Step]:
    """Everything that is timed, by name."""
    source = checkpoint()
    targets = [("any", "onnxruntime")] * 3 + [("onnxruntime",)]
    every = zip(("fp32", "int8", "int4", "int8-dynamic"), targets, strict=True)
    builds = {(p, t): ours(source, p, t) for p, ts in every for t in ts}
    engines = {key: OnnxRuntimeEngine(made, CAPACITY) for key, made in builds.items()}
    found = {
        "fp32 reading": reading(bytes_read(builds["fp32", "any"], past)),
        "int4 reading": reading(bytes_read(builds["int4", "any"], past)),
        "prefill products": products(PROMPT),
    }
    for (precision, target), engine in engines.items():
        where = "" if target == "any" else " fused"
        found[f"{precision} decode{where}"] = engine.prepare(1, 1, past)
        found[f"{precision} prefill{where}"] = engine.prepare(1, PROMPT, 0)
    if peers:
        heads = HEADS["num_key_value_heads"], SIZES["hidden_size"] // HEADS["num_attention_heads"]
        graph = OUT / "optimum" / "model.onnx"
        graph = graph if graph.exists() else optimum_export(source, OUT / "optimum")
        found["fp32 decode optimum"] = optimum_step(graph, heads, past, usable_cores())
        for precision in ("fp32", "int4"):
            folder = OUT / f"genai-{precision}"
            if not (folder / "genai_config.json").exists():
                genai_export(source, folder, precision)
            found[f"{precision} decode genai"] = GenaiSteps(folder, past, CAPACITY, SIZES["vocab_size"])
    return found


BARS = [  # what, the larger time, the smaller one, at least
    ("fp32 decode, of the reading limit", "fp32 reading", "fp32 decode fused", 0.9),
    ("fp32 decode, times faster than optimum-onnx", "fp32 decode optimum", "fp32 decode fused", 1.3),
    ("fp32 decode, times faster than GenAI", "fp32 decode genai", "fp32 decode fused", 1.5),
    ("int4 decode, times faster than GenAI's int4", "int4 decode genai", "int4 decode fused", 1.3),
    ("int4 decode, of its reading limit", "int4 reading", "int4 decode fused", 0.6),
    ("int8 prefill, times faster than fp32", "fp32 prefill fused", "int8 prefill fused", 1.4),
    ("int8-dynamic prefill, times faster than fp32", "fp32 prefill fused", "int8-dynamic prefill fused", 1.4),
    ("fp32 prefill of 128, of the products' limit", "prefill products", "fp32 prefill fused", 0.85),
]


def tables(times: dict[str, list[float]], style: str) -> tuple[str, int]:
    """What was timed, the bars, and how many of these were missed."""
    rows = [[name, f"{1e3 * statistics.median(t):.2f}", f"{1e3 * min(t):.2f}"] for name, t in times.items()]
    first = table(rows, ["step", "ms, median of turns", "fastest turn"], style)
    bars = [bar for bar in BARS if bar[1] in times]
    ratios = [statistics.median(a / b for a, b in zip(times[s], times[f], strict=True)) for _, s, f, _ in bars]
    outcomes = ["reached" if ratio >= bar[3] else "MISSED" for ratio, bar in zip(ratios, bars, strict=True)]
    rows = [[b[0], f"{r:.2f}", f"at least {b[3]}", o] for b, r, o in zip(bars, ratios, outcomes, strict=True)]
    second = table(rows, ["ratio, median over turns", "measured", "bar", "outcome"], style)
    return f"{first}\n\n{second}\n", outcomes.count("MISSED")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--past", type=int, default=512, help="tokens in the cache before a decode step (512)")
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--no-peers", dest="peers", action="store_false", help="limits only: nothing is installed")
    parser.add_argument("--out", type=Path, help="a report in Markdown, too")
    args = parser.parse_args()
    times = measured(steps(args.past, args.peers), args.turns)
    text, missed = tables(times, "table")
    print(text)
    if args.out:
        command = f"python benchmarks/bench_export.py --past {args.past} --turns {args.turns} --out {args.out}"
        about = __doc__.split("\n", 2)[2].replace(" Exits with 1 if a bar is missed.", "")
        made_by = made(command, (*PACKAGES, "onnxruntime-genai"))
        with replaced_file(args.out) as new:
            new.write_text(f"# Exported graphs on a CPU\n\n{about}\n{tables(times, 'markdown')[0]}\n{made_by}\n")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
