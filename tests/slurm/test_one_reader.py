"""Jobs are read by ``Slurm.job`` and ``Slurm.jobs``. Users write parts of every other text about them."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import slurm_elastic

PACKAGE = Path(slurm_elastic.__file__).parent
READERS = {
    "slurm/client/cli.py": 1,  # the mail, which squeue cannot print; only its user's own mail depends on it
    "sandbox/shell.py": 1,  # own jobs on an own cluster, as the next
    "cli/setting_up/quickstart.py": 1,
}
"""How often a file asks for the text of ``scontrol show job``. Nothing else may do so."""


def readers() -> Iterator[str]:
    for path in sorted(PACKAGE.rglob("*")):
        name = str(path.relative_to(PACKAGE))
        if path.suffix == ".py":
            yield from (name for words in _words(ast.parse(path.read_text())) if _shows(words))
        elif path.is_file() and "programs" in path.parts and path.suffix != ".pyc":
            text = path.read_text(errors="replace")
            yield from (
                name for _ in re.finditer(r"^[^#\n]*scontrol[^#\n]* show jobs?\b", text, re.M)
            )


def _words(tree: ast.AST) -> Iterator[list[str]]:
    """The texts in each list, tuple and call, and the words of each command written as one text."""
    for node in ast.walk(tree):
        match node:
            case ast.List(elts=parts) | ast.Tuple(elts=parts) | ast.Call(args=parts):
                yield [p.value for p in parts
                       if isinstance(p, ast.Constant) and isinstance(p.value, str)]  # fmt: skip


def _shows(words: list[str]) -> bool:
    return any(pair in {("show", "job"), ("show", "jobs")} for pair in pairwise(words))


def test_only_these_files_read_the_text_of_a_job() -> None:
    assert Counter(readers()) == READERS
