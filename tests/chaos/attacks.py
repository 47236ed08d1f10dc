"""Put each defect back into the product and run the test that must find it.

``scripts/chaos --sabotages`` prints the table (``sabotage_table``).
``python -m tests.chaos.attacks [NAME...]`` runs the tests of the table, and says what they found.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

import pytest

from tests.chaos.defects.all_rooms import ATTACKS
from tests.chaos.rewriting import StaleDefectError
from tests.chaos.sabotage import ALL

REPO = Path(__file__).parents[2]
FOUND, MISSED, SKIPPED, STALE, BROKEN = 0, 1, 2, 3, 4
ANSWERS = {
    FOUND: "found", MISSED: "NOT FOUND", SKIPPED: "not run", STALE: "STALE", BROKEN: "BROKEN",
}  # fmt: skip
"""STALE: the product has changed, so the defect cannot be put in. BROKEN: the test did not get as
far as its own assertions.
"""


_REPORT = os.dup(2)
"""Where a test that fails is named, also if all else that it prints is thrown away."""


class _Verdict:
    """Which parts of the tests have failed."""

    def __init__(self, *, names_them: bool) -> None:
        self._names_them = names_them
        self.failed: set[str] = set()
        self.passed = 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """One of the three parts of a test is over."""
        if report.failed:
            self.failed.add(report.when or "")
        if report.failed and self._names_them:
            os.write(_REPORT, f"fails: {report.nodeid} ({report.when})\n".encode())
        self.passed += report.passed and report.when == "call"


def attack(name: str, *, show: bool = False) -> int:
    """Whether the test of the defect finds it: one of ANSWERS. In a process of its own."""
    return _forked(partial(_attacked, name), show=show)


def control(names: Iterable[str]) -> int:
    """The same tests without a defect: MISSED is what they should answer."""
    tests = sorted({test for name in names for test in ATTACKS[name]})
    return _forked(partial(_run, tests, names_failing=True))


def _forked(run: Callable[[], int], *, show: bool = False) -> int:
    sys.stdout.flush()
    process = os.fork()
    if process:
        return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    status = BROKEN
    try:
        if not show:
            devnull = os.open(os.devnull, os.O_RDWR)
            for descriptor in (0, 1, 2):
                os.dup2(devnull, descriptor)
        status = run()
    except BaseException:  # noqa: BLE001 this process ends in any case
        traceback.print_exc()
    finally:
        os._exit(status)


def _attacked(name: str) -> int:
    status = _put_in(name)
    return STALE if status == STALE else _run(ATTACKS[name])


def _put_in(name: str) -> int:
    try:
        ALL[name](None)
    except (AttributeError, StaleDefectError):
        traceback.print_exc()
        return STALE
    return FOUND


def _run(tests: Sequence[str], *, names_failing: bool = False) -> int:
    verdict = _Verdict(names_them=names_failing)
    options = ["-q", "--timeout=120", "-p", "no:cacheprovider", f"--rootdir={REPO}"]
    status = pytest.main([*options, *(f"{REPO}/{test}" for test in tests)], [verdict])
    if status == pytest.ExitCode.TESTS_FAILED:
        return FOUND if "call" in verdict.failed else BROKEN
    if status != pytest.ExitCode.OK:
        return BROKEN
    return MISSED if verdict.passed else SKIPPED


def _fit(names: Iterable[str]) -> int:
    """Exit 1 if a defect cannot be put in any more."""
    stale = [name for name in names if _forked(partial(_put_in, name)) == STALE]
    print(*(f"{name}: {ANSWERS[STALE]}" for name in stale), sep="\n")
    return bool(stale)


def main() -> int:
    """Exit 1 if a test did not find its defect, or fails without it."""
    parser = argparse.ArgumentParser(prog="attacks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--show", action="store_true", help="show what the tests print")
    parser.add_argument("--fit", action="store_true", help="only put the defects in")
    given = parser.parse_args()
    names = given.names or [*ATTACKS]
    for module in ("boto3", "slurm_elastic.controller.daemon"):
        importlib.import_module(module)  # once, and not in each process
    if given.fit:
        return _fit(names)
    if not given.show and control(names) != MISSED:
        print("tests of the table fail without any defect")
        return 1
    missed = 0
    for name in names:
        began = time.monotonic()
        answer = attack(name, show=given.show)
        missed += answer != FOUND
        seconds, tests = time.monotonic() - began, " ".join(ATTACKS[name])
        print(f"{ANSWERS[answer]:9} {seconds:5.1f} s  {name}  {tests}", flush=True)
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
