"""scripts/mutate: its changes are programs, one place each, and a test that sees one kills it."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

REPO = Path(__file__).parents[2]
SOURCE = '''\
from msgspec import Struct


class Shop(Struct, frozen=True):
    least: int = 3

    def price(self, count: int) -> float:
        """Never below the least."""
        total = count * 2 + 1
        if count > 10 and not self.least:
            total -= 1
        return max(total, self.least)
'''


@pytest.fixture(scope="module")
def mutate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("mutate", REPO / "scripts" / "mutate.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules["mutate"] = made
    spec.loader.exec_module(made)
    return made


def test_each_change_is_a_program_with_one_line_of_another_text(
    mutate: ModuleType, tmp_path: Path
) -> None:
    path = tmp_path / "shop.py"
    path.write_text(SOURCE)
    lines = SOURCE.splitlines()
    found = list(mutate.mutants(path))
    changes = set()
    for mutant in found:
        compile(mutant.text, "shop.py", "exec")
        new = mutant.text.splitlines()
        (line,) = [n for n, (old, other) in enumerate(zip(lines, new, strict=True)) if old != other]
        assert line + 1 == mutant.line
        changes.add(new[line].strip())
    assert len(changes) == len(found)
    assert {
        "least: int = (4)",
        "total = (count * 2 - 1)",
        "if (count > 10 or not self.least):",
        "if (count <= 10) and not self.least:",
        "if count > 10 and (self.least):",
        "pass",
        "return (min(total, self.least))",
    } <= changes
    assert not any("frozen=(False)" in change for change in changes)


def test_a_module_is_tried_with_the_tests_that_mirror_it(mutate: ModuleType) -> None:
    package = REPO / "slurm_elastic"
    assert mutate.tests_of(package / "policies" / "ranking.py") == ["tests/policies"]
    assert mutate.tests_of(package / "hostlist.py") == ["tests/test_hostlist.py"]
    assert mutate.tests_of(package / "units.py") == []
