"""Sampled mutation of modules: see ``scripts/mutate --help``."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import importlib
import multiprocessing
import os
import re
import shutil
import signal
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import chosen
import mutants
import pytest

REPO = Path(__file__).resolve().parents[1]
PATIENCE = 900.0
"""Seconds for the tests of one mutant; one that makes them hang is noticed, too."""
EQUIVALENT = REPO / "scripts" / "equivalent.toml"
PACKAGE = "slurm_elastic"
AREAS: Mapping[str, Sequence[str]] = {
    "policies": ("policies",),
    "controller": ("controller", "features"),
    "store": ("state/store", "state/ledger", "state/ckptstate"),
    "ownership": (
        "providers/base", "providers/aws/tags.py", "providers/aws/instances.py",
        "providers/aws/termination.py", "providers/openstack/instances.py",
        "providers/openstack/launch.py", "providers/opennebula/instances.py",
        "providers/docker/provider.py", "providers/local/provider.py",
    ),
    "node_helper": ("machine/ckptroot",),
}  # fmt: skip
"""Areas that money and users' work depend on, and the modules of each."""


BESIDES = {
    "machine/ckptroot": ("checkpointers",),
    "features": ("controller",),
    "state/ckptstate": ("ckptman",),
    "policies": ("controller", "ckptman"),
    "providers/base": ("providers",),
    "state/store": ("state/ledger", "ckptman/test_in_memory.py", "controller/test_end_only.py"),
}
"""Tests that see a folder's modules from outside."""


def tests_of(path: Path) -> list[str]:
    """The files of the nearest folder of tests that mirrors a module's: files named like it first,
    then files that name it. From folders besides, and of no folder (as those of locks and of syncs
    are), only files that name it.
    """
    inside = path.relative_to(REPO / PACKAGE)
    loose = [f for f in sorted((REPO / "tests").glob("test_*.py")) if _names(path, f)]
    found: list[str] = []
    for part in (p for p in inside.parents if p != Path()):
        if (REPO / "tests" / part).is_dir():
            found += _by_name(path, _files(REPO / "tests" / part))
        for beside in BESIDES.get(str(part), ()):
            files = _files(REPO / "tests" / beside)
            mirrored = str(part) not in ("policies", "providers/base")
            found += _by_name(path, files if mirrored else [f for f in files if _names(path, f)])
        if found:
            return list(dict.fromkeys(found + _by_name(path, loose)))
    return _by_name(path, loose)


def _files(path: Path) -> list[Path]:
    return [path] if path.is_file() else sorted(path.rglob("test_*.py"))


def _by_name(path: Path, files: Sequence[Path]) -> list[str]:
    own = f"test_{path.stem}.py"
    order = sorted(files, key=lambda f: (f.name != own, not _names(path, f), f.stat().st_size))
    return [str(file.relative_to(REPO)) for file in order]


def _names(path: Path, file: Path) -> bool:
    """Whether a file of tests imports the module."""
    module = path.parent if path.stem == "__init__" else path.with_suffix("")
    *above, stem = map(re.escape, module.relative_to(REPO).parts)
    folder = r"\.".join(above)
    text = file.read_text(encoding="utf-8")
    return bool(
        re.search(rf"{folder}(\.| import [^()]*?\b|[\w.]* import \(?[^)]*?\b){stem}\b", text)
    )


def reasons(path: Path = EQUIVALENT) -> dict[tuple[str, str, str], str]:
    """Why a change is none that a test could see: by module, line, and the line it would be."""
    entries = tomllib.loads(path.read_text(encoding="utf-8")).get("equivalent", ())
    return {(e["module"], e["was"], e["made"]): e["reason"] for e in entries}


class Trial:
    """A copy of the clone in which one module at a time is another."""

    def __init__(self, place: Path, given: Sequence[str], known: chosen.TestMap | None) -> None:
        self.clone = place / "clone"
        self._given = given
        self._known = known
        self._broken: list[str] = []
        shutil.copytree(
            REPO,
            self.clone,
            ignore=shutil.ignore_patterns(".git", ".venv", "__pycache__", ".*_cache"),
        )

    def killed_by(self, mutant: mutants.Mutant) -> str | None:
        """The test that noticed, or ``time``; None where all are green."""
        tests = self._tests(mutant)
        if not tests:
            return None
        path = self.clone / mutant.path.relative_to(REPO)
        text = path.read_text(encoding="utf-8")
        path.write_text(mutant.text, encoding="utf-8")
        while True:
            try:
                by = self._failed(tests)
            finally:
                path.write_text(text, encoding="utf-8")
            one = (by or "").partition(" - ")[0]
            if not one.startswith("tests/") or self._failed([one]) is None:
                return by
            print(f"not used, fails without any mutant, too: {by}", flush=True)
            self._broken.append(one)
            path.write_text(mutant.text, encoding="utf-8")

    def _tests(self, mutant: mutants.Mutant) -> Sequence[str]:
        if self._given:
            return self._given
        mirrored = tests_of(mutant.path)
        if self._known is None:
            if not mirrored:
                raise SystemExit(f"{mutant.path}: no tests mirror it; say which with --tests")
            return mirrored
        return self._known.seeing(mutant.path, mutant.line, mirrored)

    def _failed(self, tests: Sequence[str]) -> str | None:
        said = self.clone / ".said"
        run = _FORK.Process(target=_run_tests, args=(self.clone, said, tests, self._broken))
        run.start()
        run.join(PATIENCE)
        in_time = run.exitcode is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(run.pid or 0, signal.SIGKILL)  # and whatever its tests have left
        run.join()
        if not in_time:
            return "time"
        if run.exitcode in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            return None
        if (signalled := -(run.exitcode or 0)) > 0:
            return f"signal {signalled}"
        text = said.read_text(encoding="utf-8", errors="replace")
        if "ImportError while loading conftest" in text:
            return "import: " + text.strip().rpartition("\nE ")[2].strip()
        if (found := re.search(r"^(?:FAILED|ERROR) (tests/.+)$", text, re.MULTILINE)) is not None:
            return found[1]
        if "MemoryError" in text:
            return "memory"
        raise SystemExit(f"scripts/mutate: exit {run.exitcode} of pytest:\n{text[-2000:]}")


_FORK = multiprocessing.get_context("fork")
_SLOW = (
    "boto3", "docker", "hypothesis.strategies", "msgspec", "openstack", "paramiko", "pyone",
    "rich.console", "rich.table", "yaml",
)  # fmt: skip
"""Modules that tests import and no mutant changes: imported once, and not for each."""


def _run_tests(clone: Path, said: Path, tests: Sequence[str], broken: Sequence[str]) -> None:
    """In a process of its own, which has nothing of the product yet."""
    os.setsid()
    os.chdir(clone)
    out = os.open(said, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o644)
    for stream in (1, 2):
        os.dup2(out, stream)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - multiprocessing has closed it
    os.environ |= {"PYTHONPATH": str(clone), "SLURM_ELASTIC_CHAOS_SECONDS": "15"}
    sys.path[:] = [
        str(clone),
        *(p for p in sys.path if not Path(p).is_relative_to(REPO / "scripts")),
    ]
    options = [
        "-q",
        "-x",
        "-p",
        "no:cacheprovider",
        "-rfE",
        "--tb=no",
        "-m",
        "not e2e and not engine",
    ]
    there = "ignore:Module already imported:pytest.PytestAssertRewriteWarning"
    code = pytest.main([*options, "-W", there, *(f"--deselect={one}" for one in broken), *tests])
    sys.stdout.flush()
    os._exit(code)


_mine: Trial
"""That of a process of several that try mutants side by side."""


def _begin(place: Path, tests: Sequence[str]) -> None:
    global _mine
    _mine = Trial(place / str(os.getpid()), tests, _known(tests))
    os.chdir(_mine.clone)  # where hypothesis keeps its examples, from its import on
    for name in _SLOW:
        importlib.import_module(name)


def _known(tests: Sequence[str]) -> chosen.TestMap | None:
    """Opened by the process that asks it: of another one's coverage removes the file."""
    return None if tests else chosen.TestMap.of(REPO)


def _tried(one: tuple[mutants.Mutant, str | None]) -> str:
    return tried(_mine, *one)


def tried(trial: Trial, mutant: mutants.Mutant, reason: str | None) -> str:
    """Try one and say what came of it: ``killed``, ``survived`` or ``equivalent``."""
    name = mutant.path.relative_to(REPO)
    if reason is not None:
        print(f"equivalent {name}:{mutant.line} {reason}", flush=True)
        return "equivalent"
    by = trial.killed_by(mutant)
    if by is not None:
        print(f"killed     {name}:{mutant.line} by {by}", flush=True)
        return "killed"
    lines = mutant.path.read_text(encoding="utf-8").splitlines(keepends=True)
    new = mutant.text.splitlines(keepends=True)
    diff = "".join(difflib.unified_diff(lines, new, n=1))
    print(f"SURVIVED   {name}:{mutant.line}\n{diff}", flush=True)
    return "survived"


def percent(counts: Mapping[str, int]) -> float:
    """Of the changes that a test could see, those that one noticed: equivalent ones are in neither
    part.
    """
    killed, survived = counts.get("killed", 0), counts.get("survived", 0)
    return 100.0 * killed / (killed + survived) if survived else 100.0


def score(name: str, counts: Mapping[str, int]) -> str:
    """One line."""
    killed, survived = counts.get("killed", 0), counts.get("survived", 0)
    share = f"{percent(counts):.1f}%" if killed + survived else "-"
    return (
        f"{name:12} tried {sum(counts.values()):4}  killed {killed:4}  equivalent "
        f"{counts.get('equivalent', 0):3}  survived {survived:3}  score {share}"
    )


def areas(given: argparse.Namespace) -> Iterator[tuple[str, list[Path]]]:
    """The name and the modules of each part that is scored by itself."""
    for name in given.area:
        yield name, [m for path in AREAS[name] for m in _modules(REPO / PACKAGE / path)]
    if given.paths:
        yield "all", [found for path in given.paths for found in _modules(REPO / path)]


def main() -> int:
    """Exit 1 where more of an area's mutants survived than may."""
    parser = argparse.ArgumentParser(prog="scripts/mutate")
    parser.add_argument("paths", nargs="*", help="modules or folders")
    parser.add_argument(
        "--area", nargs="+", choices=AREAS, default=[], help="or the modules of these"
    )
    parser.add_argument("--sample", type=int, metavar="N", help="lines of each area; 0: all of all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--least", type=float, default=100.0, metavar="PERCENT",
        help="of each area that have to be noticed (default: all)",
    )  # fmt: skip
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="so many side by side")
    parser.add_argument("--tests", nargs="+", default=[], help="in place of those that see a line")
    parser.add_argument("--learn", action="store_true", help="note which tests see which lines")
    parser.add_argument(
        "--only", choices=sorted(mutants.OPERATORS), default="any", dest="kind",
        help="locks: a block without its lock; durability: nothing is synced",
    )  # fmt: skip
    given = parser.parse_args()
    if given.learn:
        return chosen.learn(REPO, given.tests or ["tests"])
    if not given.paths and not given.area:
        given.area = list(AREAS)
    count = given.sample if given.sample is not None else 40 if given.kind == "any" else 0
    known = _known(given.tests)
    told = "of the folders that mirror" if known is None else known.told
    print("tests: " + (" ".join(given.tests or ()) or told), flush=True)
    why = reasons()
    summary = []
    with tempfile.TemporaryDirectory(prefix="se-mutate-") as place:
        Path(place).chmod(0o755)
        begun = (Path(place), given.tests)
        with ProcessPoolExecutor(given.jobs, _FORK, _begin, begun) as pool:
            for name, modules in areas(given):
                some = mutants.sampled(modules, given.kind, count, given.seed)
                keys = [(str(one.path.relative_to(REPO)), one.was, one.made) for one in some]
                counts = Counter(pool.map(_tried, zip(some, map(why.get, keys), strict=True)))
                summary.append((percent(counts), score(name, counts)))
    print(*(line for _, line in summary), sep="\n")
    return 1 if any(noticed < given.least for noticed, _ in summary) else 0


def _modules(path: Path) -> list[Path]:
    found = [path] if path.is_file() else sorted(path.rglob("*.py"))
    if not found:
        raise SystemExit(f"scripts/mutate: {path}: there is no module")
    return found


if __name__ == "__main__":
    sys.exit(main())
