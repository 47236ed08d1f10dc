"""Docstrings in plain English."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator
from pathlib import Path

import slurm_elastic

PACKAGE = Path(slurm_elastic.__file__).parent
REPO = PACKAGE.parent
TREES = ("slurm_elastic", "tests", "benchmarks", "scripts")
"""Beside an installed package the others are missing."""
_FOREIGN = {".venv", "venv", "axe", "__pycache__"}
_OPENING = re.compile(r"(?:^|[.!?] )(?:Those|What|Of)\b[^.?]*(?:\.|$)")
_DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """The docstrings of modules, classes, functions and assignments, by their lines."""
    for node in ast.walk(tree):
        if not isinstance(node, _DOCUMENTED):
            continue
        for one in node.body:
            match one:
                case ast.Expr(value=ast.Constant(value=str() as text)):
                    yield one.lineno, " ".join(text.split())


def sources() -> Iterator[Path]:
    for tree in TREES:
        for directory, below, files in os.walk(REPO / tree):
            below[:] = sorted(set(below) - _FOREIGN)
            yield from (Path(directory, name) for name in sorted(files) if name.endswith(".py"))


def test_no_sentence_opens_with_those_what_or_of() -> None:
    """Such a sentence has to be read twice; a question does not."""
    found = [
        f"{path.relative_to(REPO)}:{line}: {opening[0].strip('. ')}"
        for path in sources()
        for line, text in docstrings(ast.parse(path.read_text()))
        for opening in _OPENING.finditer(text)
    ]
    assert found == []
