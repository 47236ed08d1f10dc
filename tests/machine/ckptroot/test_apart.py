"""The root part goes alone: it needs the standard library, and its tests need nothing but it."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_elastic.machine import ckptroot

TESTS = Path(__file__).parent
SOURCES = Path(ckptroot.__path__[0])
FILES = [*SOURCES.glob("*.py"), *TESTS.glob("*.py")]


def imported(path: Path) -> Iterator[str]:
    """Names of modules, those of the same folder with a dot in front."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            inner = (f"{module}.{one.name}" for one in node.names)
            yield from inner if module == ckptroot.__name__.rpartition(".")[0] else [module]


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_it_needs_nothing_of_ours(path: Path) -> None:
    ours = {"pytest", "hypothesis", ckptroot.__name__} if path.parent == TESTS else set()
    for name in imported(path):
        is_near = name.startswith(".") and not name.startswith("..")
        is_own = any(name == one or name.startswith(f"{one}.") for one in ours)
        assert is_near or is_own or name.partition(".")[0] in sys.stdlib_module_names, name
