"""scripts/mutate: its changes are programs, one place each, and a test that sees one kills it."""

from __future__ import annotations

import importlib
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator, Set
from pathlib import Path
from typing import Any

import pytest
from coverage import CoverageData

REPO = Path(__file__).parents[2]
SOURCE = '''\
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Sequence


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
def mutate() -> Iterator[Any]:
    """The script, as Python imports what lies beside it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(REPO / "scripts")
        yield importlib.import_module("mutate")


def test_each_change_is_a_program_with_one_line_of_another_text(
    mutate: Any, tmp_path: Path
) -> None:
    path = tmp_path / "shop.py"
    path.write_text(SOURCE)
    lines = SOURCE.splitlines()
    found = list(mutate.mutants.mutants(path))
    changes = set()
    for mutant in found:
        compile(mutant.text, "shop.py", "exec")
        new = mutant.text.splitlines()
        (line,) = [n for n, (old, other) in enumerate(zip(lines, new, strict=True)) if old != other]
        assert line + 1 == mutant.line
        assert (lines[line].strip(), new[line].strip()) == (mutant.was, mutant.made)
        changes.add(mutant.made)
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
    assert not any("TYPE_CHECKING" in change for change in changes)


LOCKED = """\
import fcntl

def add(self, file):
    with self._lock:
        self.n += 1
    with self.open(file) as text, self._alone(file):
        fcntl.flock(text, fcntl.LOCK_EX)
"""


def test_locks_are_left_out_one_at_a_time(mutate: Any, tmp_path: Path) -> None:
    path = tmp_path / "locked.py"
    path.write_text(LOCKED)
    made = {mutant.made for mutant in mutate.mutants.mutants(path, "locks")}
    assert made == {"if True:", "with self.open(file) as text:", "pass"}


def test_a_sample_has_a_line_once_and_is_the_same_by_its_seed(mutate: Any, tmp_path: Path) -> None:
    path = tmp_path / "shop.py"
    path.write_text(SOURCE)
    one, same, other = (mutate.mutants.sampled([path], "any", 3, seed) for seed in (1, 1, 2))
    assert one == same != other
    assert len({mutant.line for mutant in one}) == 3
    assert len(mutate.mutants.sampled([path], "any", 0, 1)) > 9


def test_a_module_is_tried_with_the_tests_that_mirror_it(mutate: Any) -> None:
    package = REPO / "slurm_elastic"
    of = mutate.tests_of(package / "policies" / "launch" / "ranking.py")
    assert of[0] == "tests/policies/test_ranking.py"
    assert {"tests/policies/test_scaling.py", "tests/policies/test_gang.py"} <= set(of)
    assert mutate.tests_of(package / "base" / "hostlist.py")[0] == "tests/base/test_hostlist.py"
    assert mutate.tests_of(package / "image" / "none" / "units.py") != []


def test_modules_of_each_area_are_there(mutate: Any) -> None:
    for area in mutate.AREAS:
        (found,) = mutate.areas(Namespace(area=[area], paths=[]))
        assert found[0] == area
        assert len(found[1]) > 3


def test_what_is_called_equivalent_is_a_change_that_could_be_tried(mutate: Any) -> None:
    changes: dict[str, set[tuple[str, str]]] = {}
    for (module, was, made), reason in mutate.reasons().items():
        assert reason
        changes.setdefault(module, set()).add((was, made))
    for module, called in changes.items():
        assert called <= _changes(mutate.mutants, REPO / module, {was for was, _ in called}), module


def _changes(mutants: Any, path: Path, lines: Set[str]) -> set[tuple[str, str]]:
    """All changes of these lines: to try those of all others would take minutes."""
    text = path.read_text(encoding="utf-8").splitlines()
    some = (one for one in mutants.places(path) if text[one.node.lineno - 1].strip() in lines)
    return {(made.was, made.made) for one in some if (made := mutants.mutant(one)) is not None}


def test_the_score_is_that_of_changes_a_test_could_see(mutate: Any) -> None:
    line = mutate.score("store", Counter(killed=3, survived=1, equivalent=2))
    assert line.split() == [
        "store",
        "tried",
        "6",
        "killed",
        "3",
        "equivalent",
        "2",
        "survived",
        "1",
        "score",
        "75.0%",
    ]


@pytest.mark.parametrize(
    ("counts", "percent"),
    [({"killed": 9, "survived": 1}, 90.0), ({"equivalent": 3}, 100.0), ({"survived": 2}, 0.0)],
)
def test_what_no_test_could_see_is_in_no_part_of_a_score(
    mutate: Any, counts: dict[str, int], percent: float
) -> None:
    assert mutate.percent(Counter(counts)) == percent


def test_tests_are_chosen_by_the_lines_that_they_ran_through(mutate: Any, tmp_path: Path) -> None:
    place = tmp_path / mutate.chosen.PLACE
    for root in (tmp_path, place):
        (root / "slurm_elastic").mkdir(parents=True)
        (root / "slurm_elastic" / "a.py").write_text("one\ntwo\nthree\n")
        (root / "tests").mkdir()
        (root / "tests" / "test_a.py").write_text("")
    (tmp_path / "tests" / "test_new.py").write_text("")
    seen = {"tests/test_a.py::test_b|run": [2], "tests/test_a.py::test_c|run": [2, 3], "": [1]}
    data = CoverageData(str(place / "coverage"))
    for context, lines in seen.items():
        data.set_context(context)
        data.add_lines({"slurm_elastic/a.py": lines})
    data.write()
    cases = "".join(
        f'<testcase classname="tests.test_a" name="test_{name}" time="{seconds}"/>'
        for name, seconds in (("b", 9), ("c", 1))
    )
    cases += '<testcase classname="tests.test_loose" name="test_d" time="2"/>'
    (tmp_path / "tests" / "test_loose.py").write_text("def test_d(): ...\n")
    (place / "tests" / "test_loose.py").write_text("def test_d(): ...\n")
    (place / "junit.xml").write_text(f"<testsuite>{cases}</testsuite>")
    path = tmp_path / "slurm_elastic" / "a.py"
    path.write_text("new\none\ntwo\nthree\n")
    known = mutate.chosen.TestMap.of(tmp_path)
    b, c = "tests/test_a.py::test_b", "tests/test_a.py::test_c"
    blind = "tests/test_loose.py::test_d"
    assert known.seeing(path, 4, ["tests/"]) == ["tests/test_new.py", c, blind]
    assert known.seeing(path, 3, ["tests/test_a"]) == [c, b]
    (tmp_path / "tests" / "test_last.py").write_text("")
    known = mutate.chosen.TestMap.of(tmp_path)
    changed = ["tests/test_new.py", "tests/test_last.py"]
    assert known.seeing(path, 4, [*changed, "tests/test_a.py"]) == [*changed, c]
    assert known.seeing(path, 2, ["tests/test_a"]) == [c, b], "run on import: all of the module"
    named = known.seeing(path, 2, ["tests/test_a", "tests/test_loose"])
    assert named == [c, blind, b], "and what names it in no folder"
    files = ["tests/test_loose.py", "tests/test_a.py"]
    assert known.seeing(path, 2, files) == [c, b, blind], "those of its own file first"
    (tmp_path / "tests" / "test_a.py").write_text("def test_d(): ...\n")
    known = mutate.chosen.TestMap.of(tmp_path)
    assert known.seeing(path, 4, ["tests/other"]) == ["tests/test_a.py"], "it has another test"
    assert mutate.chosen.TestMap.of(tmp_path / "tests") is None


@pytest.mark.release
def test_a_learning_run_notes_the_lines_of_each_test(
    mutate: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("COVERAGE_PROCESS_START", "COVERAGE_PROCESS_CONFIG", "PYTEST_ADDOPTS"):
        monkeypatch.delenv(variable, raising=False)
    package, tests = tmp_path / "slurm_elastic", tmp_path / "tests"
    package.mkdir()
    tests.mkdir()
    (package / "__init__.py").write_text("")
    (package / "a.py").write_text("def f(x):\n    if x:\n        return 1\n    return 2\n")
    (tests / "test_a.py").write_text(
        "from slurm_elastic.a import f\n\n\n"
        "def test_yes():\n    assert f(1) == 1\n\n\n"
        "def test_no():\n    assert f(0) == 2\n"
    )
    assert mutate.chosen.learn(tmp_path, ["tests"]) == 0
    known = mutate.chosen.TestMap.of(tmp_path)
    by_line = {n: known.seeing(package / "a.py", n, ["tests/test_a.py"]) for n in (3, 4)}
    assert by_line == {3: ["tests/test_a.py::test_yes"], 4: ["tests/test_a.py::test_no"]}
