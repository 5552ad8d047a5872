"""All families fit into 900 lines of code: the parts are classes, not the models."""

import ast
import io
import tokenize
from pathlib import Path

import models

PARTS = (
    "kernels", "positions", "norm", "attention", "latent", "recurrent", "feed_forward", "block", "cache", "stack",
    "language_model", "builder",
)  # fmt: skip
MOST = 900
FOLDER = Path(models.__file__).parent
NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
# Files that are about something else than what a model computes.
OTHERS = {
    "__init__", "__main__", "classics", "cli", "generate", "gguf_file", "layouts", "perplexity",
    "progress", "provenance", "random_weights", "safetensors_file", "sampling", "supported", "tokenizer",
    "tokenizer_gguf", "weights",
}  # fmt: skip


def code_lines(source: str) -> int:
    """Lines with code: no blank ones, comments or docstrings."""
    lines = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in NO_CODE:
            lines |= set(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            lines -= set(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    return len(lines)


def test_all_families_fit_into_900_lines():
    assert sum(code_lines((FOLDER / f"{name}.py").read_text()) for name in PARTS) <= MOST


def test_no_part_hides_in_another_file():
    assert {path.stem for path in FOLDER.glob("*.py")} == {*PARTS, *OTHERS}


def test_models_know_nothing_of_the_exporter():
    """Experiments measure, and so do need it."""
    for path in FOLDER.rglob("*.py"):
        nodes = list(ast.walk(ast.parse(path.read_text())))
        imports = {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
        imports |= {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
        assert path.parent.name == "experiments" or not any(name.split(".")[0] == "export" for name in imports)


def test_what_is_counted():
    assert (
        code_lines('"""Doc."""\n\n# why\ndef f(\n    x,\n):\n    """Doc.\n\n    More.\n    """\n    return x  # x\n')
        == 4
    )
