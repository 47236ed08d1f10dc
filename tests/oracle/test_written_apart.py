"""The oracle shares no judgement with the product: what is wrong there would be wrong here, too."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
FORBIDDEN = (
    "slurm_elastic.policies",
    "slurm_elastic.features",
    "slurm_elastic.simulate",
    "slurm_elastic.controller",
    "slurm_elastic.base.billing",
    "slurm_elastic.state.ledger",
    "slurm_elastic.state.store",
    "slurm_elastic.state.ckptstate",
)


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_the_oracle_imports_nothing_that_decides_or_adds_up() -> None:
    names = {name for path in HERE.glob("*.py") for name in imported(path)}
    assert "slurm_elastic.watch.door" in names
    shared = {name for name in names if name.startswith(FORBIDDEN)}
    assert shared == set()
