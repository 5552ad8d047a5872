"""What other exporters make of a checkpoint, ready to be timed: Optimum's ONNX export and ONNX Runtime GenAI.

Each is installed into an environment of its own under out/peers/, since they want other versions of transformers.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
PEERS = ROOT / "out" / "peers"
PIP = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
PINNED = [f"torch=={version}" for version in ("2.13.0",)] + ["onnx", "onnxruntime", "onnxscript"]
OPTIMUM = ["optimum-onnx==0.1.0", *PINNED]
GENAI = ["onnxruntime-genai==0.18.0", "transformers>=5.24", "onnx-ir", *PINNED]


def environment(name: str, packages: list[str]) -> Path:
    """The Python of an environment with these packages, made if it is not there."""
    folder, done = PEERS / name, PEERS / name / "installed"
    python = folder / "bin" / "python"
    if not done.exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        subprocess.run([python, *PIP, *packages], check=True, cwd=ROOT)
        done.touch()
    return python


def optimum_export(checkpoint: Path, out: Path) -> Path:
    """Optimum's graph with past keys and values."""
    python = environment("optimum", OPTIMUM)
    command = [python.parent / "optimum-cli", "export", "onnx", "--model", checkpoint]
    _run([*command, "--task", "text-generation-with-past", out])
    return out / "model.onnx"


def genai_export(checkpoint: Path, out: Path, precision: str) -> Path:
    """GenAI's folder for a CPU, in fp32 or int4 (groups of 32, its default)."""
    python = environment("genai", GENAI)
    _run([python, "-m", "onnxruntime_genai.models.builder", "-i", checkpoint, "-o", out, "-p", precision, "-e", "cpu"])
    return out


def _run(command: list) -> None:
    """Quietly, without the network."""
    quiet = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "PYTHONPATH": ""}
    done = subprocess.run(command, env=os.environ | quiet, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{command[0]}: {done.stderr.strip().splitlines()[-1]}")


def optimum_step(graph: Path, heads: tuple[int, int], past: int, threads: int) -> Callable[[], None]:
    """A decode step after `past` tokens, of one sequence, by the session that Optimum would open. heads: (K, H)."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    session = ort.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(0)
    known = {
        "input_ids": np.array([[5]]),
        "position_ids": np.array([[past]]),
        "attention_mask": np.ones((1, past + 1), np.int64),
    }
    inputs = {}
    for one in session.get_inputs():
        cached = rng.standard_normal((1, heads[0], past, heads[1]), dtype=np.float32)
        inputs[one.name] = known.get(one.name, cached)
    return lambda: session.run(None, inputs)


class GenaiSteps:
    """Decode steps of one sequence by GenAI's own loop, at about `past` tokens: it starts again before it runs far."""

    def __init__(self, folder: Path, past: int, capacity: int, vocabulary: int):
        import onnxruntime_genai as genai

        self._genai, self._model, self._past, self._last = (
            genai,
            genai.Model(str(folder)),
            past,
            min(past + 64, capacity),
        )
        self._parameters = genai.GeneratorParams(self._model)
        self._parameters.set_search_options(max_length=capacity, min_length=capacity, batch_size=1)
        self._prompt = np.random.default_rng(0).integers(3, vocabulary, (1, past)).astype(np.int32)
        self._start()

    def _start(self) -> None:
        self._generator = self._genai.Generator(self._model, self._parameters)
        self._generator.append_tokens(self._prompt)
        self._generator.generate_next_token()
        self._length = self._past + 1

    def __call__(self) -> float:
        """Seconds of one step, without those of starting again."""
        if self._length + 1 >= self._last:
            self._start()
        start = time.perf_counter()
        self._generator.generate_next_token()
        self._length += 1
        return time.perf_counter() - start
