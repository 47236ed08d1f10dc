"""Which tests see a line, as a run with coverage noted it: ``scripts/mutate --learn``."""

from __future__ import annotations

import difflib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from xml.etree import ElementTree

from coverage import CoverageData

PLACE = ".pytest_cache/mutate"
SECONDS = 120.0
"""So long may the tests of one mutant take together by the time that they took then; the cheapest
come first.
"""
PAGES = "tests/watch/web/"
SETTINGS = """\
[run]
source = slurm_elastic
relative_files = true
parallel = true
patch = subprocess
context = ${PYTEST_CURRENT_TEST-}
data_file = %s/coverage
"""


class TestMap:
    """The tests by the lines that they ran through, the modules as they were then."""

    __test__ = False  # for pytest

    def __init__(self, repo: Path) -> None:
        self._repo = repo
        self._place = repo / PLACE
        self._data = CoverageData(str(self._place / "coverage"))
        self._data.read()
        self._seconds = seconds_of(self._place / "junit.xml", repo)
        self.told = f"{len(self._seconds)}, by {PLACE}"

    @classmethod
    def of(cls, repo: Path) -> TestMap | None:
        """None where nobody has run ``--learn``."""
        return cls(repo) if (repo / PLACE / "coverage").exists() else None

    def seeing(self, path: Path, line: int, mirrored: Sequence[str]) -> list[str]:
        """The tests that run through a line, those of its module's file first, then those that
        mirror it, and before all others the files of these that have changed since. A line that is
        run on import is seen by each test of its module, and those that mirror it: they may run it
        in a process that is killed before it can say so.
        """
        name = str(path.relative_to(self._repo))
        seen = self._seen(name)
        old = _before(self._place / name, path).get(line)
        every = frozenset[str]().union(*seen.values())
        beside = frozenset(test for test in self._seconds if test.startswith(tuple(mirrored)))
        tests = (every if old is None else seen.get(old)) or every | beside
        # Those of no folder that name it, and saw no line, killed the processes that ran it.
        tests |= {test for test in beside - every if test.startswith("tests/test_")}
        new = self._changed()
        changed = [file for own in mirrored for file in new if file.startswith(own)]
        # And those of no folder of which a test has seen it: they may have got another one for it.
        loose = {t.partition("::")[0] for t in tests if t.startswith("tests/test_")}
        changed += [file for file in new if file in loose]
        left = [t for t in tests if t.partition("::")[0] not in changed and not _far(t, mirrored)]
        own = tuple(file for file in mirrored if file.endswith(f"/test_{path.stem}.py"))
        firsts = (own, tuple(mirrored))
        left.sort(key=lambda t: (*(not t.startswith(one) for one in firsts), self._seconds[t]))
        return list(dict.fromkeys([*changed, *self._there(self._affordable(left))]))

    def _there(self, tests: Sequence[str]) -> Iterator[str]:
        """Those that are there still; of a file that has changed with all their parameters."""
        for test in tests:
            file, _, name = test.partition("::")
            path, name = self._repo / file, name.partition("[")[0]
            if path.exists() and file not in self._changed():
                yield test
            elif path.exists() and f"def {name.rpartition('::')[2]}(" in path.read_text():
                yield f"{file}::{name}"

    def _affordable(self, tests: Sequence[str]) -> list[str]:
        out, spent = [], 0.0
        for test in tests:
            spent += self._seconds[test]
            if spent > SECONDS:
                break
            out.append(test)
        return out

    @cache  # noqa: B019 - one map a run
    def _seen(self, name: str) -> Mapping[int, frozenset[str]]:
        lines = self._data.contexts_by_lineno(name)
        return {
            line: frozenset(t for context in some if (t := test_of(context)) in self._seconds)
            for line, some in lines.items()
        }

    @cache  # noqa: B019
    def _changed(self) -> Sequence[str]:
        """Files of tests that are new, or another than then."""
        here = sorted((self._repo / "tests").rglob("test_*.py"))
        names = [str(path.relative_to(self._repo)) for path in here]
        return [n for n in names if not _same(self._repo / n, self._place / n)]


def _far(test: str, mirrored: Sequence[str]) -> bool:
    """Whether it draws a page, by which a browser tells little of all that it went through."""
    return test.startswith(PAGES) and not test.startswith(tuple(mirrored))


def test_of(context: str) -> str:
    """The test that a context of coverage is of: of its own run, or of a process it started."""
    own, _, dynamic = context.rpartition("|")
    if dynamic in ("run", "setup", "teardown"):
        return own.rpartition("|")[2] if own.startswith("tests/") else own.lstrip("|")
    return (own or dynamic).rpartition(" (")[0]


def seconds_of(path: Path, repo: Path) -> dict[str, float]:
    """How long each test took that passed, by its name."""
    out: dict[str, float] = {}
    for case in ElementTree.parse(path).iter("testcase"):
        if any(child.tag in ("failure", "error", "skipped") for child in case):
            continue
        parts = str(case.get("classname")).split(".")
        files = (
            n for n in range(1, len(parts) + 1) if (repo / f"{'/'.join(parts[:n])}.py").exists()
        )
        if (n := next(files, None)) is not None:
            name = "::".join(["/".join(parts[:n]) + ".py", *parts[n:], str(case.get("name"))])
            out[name] = float(case.get("time") or 0)
    return out


@cache
def _before(old: Path, new: Path) -> Mapping[int, int]:
    """The line that each line of a module was then."""
    if not old.exists():
        return {}
    was, now = (path.read_text(encoding="utf-8").splitlines() for path in (old, new))
    blocks = difflib.SequenceMatcher(None, was, now, autojunk=False).get_matching_blocks()
    return {b.b + n + 1: b.a + n + 1 for b in blocks for n in range(b.size)}


def _same(one: Path, other: Path) -> bool:
    return other.exists() and one.read_bytes() == other.read_bytes()


def learn(repo: Path, tests: Sequence[str]) -> int:
    """Run the fast tests with coverage and keep what they saw; pytest's exit code."""
    place = repo / PLACE
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    for folder in ("slurm_elastic", "tests"):
        shutil.copytree(repo / folder, place / folder, ignore=shutil.ignore_patterns("__pycache__"))
    settings = place / "settings.ini"
    settings.write_text(SETTINGS % place, encoding="utf-8")
    command = [
        sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", str(os.cpu_count()),
        "--dist", "loadfile", "-m", "not e2e and not engine",
        f"--junitxml={place / 'junit.xml'}", "--cov", f"--cov-config={settings}",
        "--cov-context=test", "--cov-report=", *tests,
    ]  # fmt: skip
    env = {**os.environ, "SLURM_ELASTIC_CHAOS_SECONDS": "15"}
    return subprocess.run(command, cwd=repo, env=env, check=False).returncode
