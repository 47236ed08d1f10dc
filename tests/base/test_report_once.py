"""A trouble is reported once, again when it changes or comes back, and its memory is bounded."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

import slurm_elastic
from slurm_elastic.base.report_once import ReportOnce

PACKAGE = Path(slurm_elastic.__file__).parent
SUBJECTS, REPORTS = st.sampled_from("abc"), st.sampled_from(["", "x", "y", None])


def test_a_report_is_news_once_and_again_when_it_changes() -> None:
    reports = ReportOnce[str]()
    asked = [reports.is_news("n1", why) for why in ("full", "full", "locked", "locked", "full")]
    assert asked == [True, False, True, False, True]
    assert reports.is_news("n2", "full"), "another node has not been reported"


def test_a_trouble_that_comes_back_is_news() -> None:
    reports = ReportOnce[str]()
    reports.is_news("n1", "full")
    assert reports.last_report("n1") == "full"
    assert [reports.clear("n1"), reports.clear("n1")] == [True, False]
    assert reports.last_report("n1") is None
    assert reports.is_news("n1", "full")


def test_a_subject_that_no_longer_exists_is_forgotten() -> None:
    reports = ReportOnce[str]()
    for node in ("n1", "n2"):
        reports.is_news(node, "full")
    reports.forget_unless({"n2"}.__contains__)
    assert [reports.is_news(node, "full") for node in ("n1", "n2")] == [True, False]


def test_an_owner_that_forgets_nothing_loses_the_subject_asked_about_longest_ago() -> None:
    reports = ReportOnce[int](max_subjects=2)
    for subject in (1, 2, 1, 3):
        reports.is_news(subject)
    assert [reports.last_report(subject) for subject in (1, 2, 3)] == ["", None, ""]


def test_a_site_has_room_for_a_hundred_thousand_subjects() -> None:
    reports = ReportOnce[int]()
    assert all(reports.is_news(number) for number in range(100_001))
    assert (len(reports._reports), reports.last_report(0), reports.last_report(1)) == (
        100_000,
        None,
        "",
    )


def test_of_many_threads_one_reports() -> None:
    reports = ReportOnce[str]()
    with ThreadPoolExecutor(8) as workers:
        asked = list(workers.map(lambda _: reports.is_news("door", "broken"), range(200)))
    assert asked.count(True) == 1


def test_whether_a_subject_exists_may_be_asked_of_another_memory_with_reports() -> None:
    """The lock is free while ``exists`` runs, so no two locks wait for each other."""
    reports = ReportOnce[str]()
    reports.is_news("n1")
    reports.forget_unless(lambda subject: reports.last_report(subject) is None)
    assert reports.last_report("n1") is None


class Reports(RuleBasedStateMachine):
    """Beside a dictionary that anybody can read."""

    def __init__(self) -> None:
        super().__init__()
        self.reports = ReportOnce[str]()
        self.expected: dict[str, str | None] = {}

    @rule(subject=SUBJECTS, report=REPORTS)
    def report(self, subject: str, report: str | None) -> None:
        is_known = subject in self.expected and self.expected[subject] == report
        assert self.reports.is_news(subject, report) is not is_known
        self.expected[subject] = report

    @rule(subject=SUBJECTS)
    def over(self, subject: str) -> None:
        assert self.reports.clear(subject) is (subject in self.expected)
        self.expected.pop(subject, None)

    @rule(alive=st.sets(SUBJECTS))
    def forget(self, alive: set[str]) -> None:
        self.reports.forget_unless(alive.__contains__)
        self.expected = {s: report for s, report in self.expected.items() if s in alive}

    @invariant()
    def nothing_else_is_kept(self) -> None:
        assert self.reports._reports == self.expected


TestReports = Reports.TestCase
TestReports.settings = settings(max_examples=50, stateful_step_count=20, deadline=None)


@given(st.lists(st.integers(0, 50)), st.integers(1, 5))
def test_the_memory_is_never_larger_than_its_bound(subjects: list[int], bound: int) -> None:
    reports = ReportOnce[int](bound)
    for subject in subjects:
        reports.is_news(subject)
    assert len(reports._reports) == min(bound, len(set(subjects)))


# No module remembers in another way what it has reported.

LOGGED_ONCE_FOR_OTHER_REASONS = {
    "features/network/munge_keys.py MungeKeys._note_joined _finished": "machines that are tried no more",
    "controller/snapshot.py CloudReader._list doubts": "the last list's own doubts, replaced whole",
}


def _assigned(function: ast.AST) -> set[str]:
    """The attributes of self that a method changes."""
    changed = set()
    for node in ast.walk(function):
        match node:
            case ast.Assign(targets=targets):
                places: list[ast.expr] = list(targets)
            case ast.AugAssign(target=target) | ast.AnnAssign(target=target):
                places = [target]
            case ast.Subscript(value=owner, ctx=ast.Store()):
                places = [owner]
            case ast.Call(func=ast.Attribute(value=owner, attr="add" | "update" | "setdefault")):
                places = [owner]
            case _:
                continue
        changed |= {name for place in places for name in _own(place)}
    return changed


def _own(node: ast.AST) -> Iterator[str]:
    for one in ast.walk(node):
        match one:
            case ast.Attribute(value=ast.Name(id="self"), attr=name):
                yield name


def _asked_before_a_line(function: ast.AST) -> Iterator[str]:
    """The attributes of self that a condition compares before it logs, or before it returns
    instead; times are compared by <.
    """
    logs = _is_line(function)
    for node in ast.walk(function):
        match node:
            case ast.If(test=test, body=[ast.Return(), *_]) if logs:
                yield from _compared(test)
            case ast.If(test=test, body=body) if any(map(_is_line, body)):
                yield from _compared(test)


def _compared(test: ast.expr) -> Iterator[str]:
    for one in ast.walk(test):
        match one:
            case ast.UnaryOp() | ast.Compare(ops=[ast.Eq() | ast.NotEq() | ast.In() | ast.NotIn()]):
                yield from _own(one)


def _is_line(statement: ast.AST) -> bool:
    calls = (one.func for one in ast.walk(statement) if isinstance(one, ast.Call))
    return any(
        isinstance(call, ast.Attribute) and ast.unparse(call.value) == "log" for call in calls
    )


def test_no_class_compares_with_its_own_memory_before_it_logs() -> None:
    """``if why != self._why: log...; self._why = why`` is what ReportOnce is for."""
    by_hand = {
        f"{path.relative_to(PACKAGE)} {owner.name}.{function.name} {name}"
        for path in PACKAGE.rglob("*.py")
        # The programs on a machine have the standard library alone.
        if not {"ckptroot", "programs"} & set(path.parts) and "log." in (text := path.read_text())
        for owner in ast.parse(text).body
        if isinstance(owner, ast.ClassDef)
        for function in owner.body
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        if (asked := set(_asked_before_a_line(function)))
        for name in asked & _assigned(function)
    }
    assert by_hand == set(LOGGED_ONCE_FOR_OTHER_REASONS)


NOTHING_TO_FORGET = {
    "features/growth/autoscaler.py _causes": "the pool groups of the configuration",
    "features/orders/image_replacement.py _failures": "the pools of the configuration",
    "features/network/enrolment.py _reports": "one port, which is opened once",
    "controller/reconcile.py _doubts": "one cloud, whose report is None without a doubt",
    "controller/strays.py _health": "one report, which is empty without strays",
    "providers/aws/images.py _reports": "the pools' images of the configuration",
    "providers/opennebula/images.py _reports": "the pools' images of the configuration",
    "providers/base/hosts/switched.py _doubts": "one cloud, whose report is false without a doubt",
    "watch/door/server.py _failures": "one subject, which users could have reported for ever",
}


def test_each_owner_forgets_what_is_over_or_no_longer_there() -> None:
    kept_for_ever = {
        f"{path.relative_to(PACKAGE)} {name}"
        for path in PACKAGE.rglob("*.py")
        if "ReportOnce" in (text := path.read_text())
        for name in re.findall(r"self\.(\w+)\b[^=\n]*= .*\bReportOnce\b", text)
        if not re.search(rf"\b{name}(\[[\w.]+\])?\.(clear|forget_unless)\(", text)
    }
    assert kept_for_ever == set(NOTHING_TO_FORGET)


@pytest.mark.parametrize(
    "body",
    [
        "if why != self._why:\n            log.error(why)\n        self._why = why",
        "if why not in self._told:\n            log.info(why)\n            self._told.add(why)",
        "if not self._told:\n            log.warning(why)\n        self._told = True",
        "if self._told.get(1) == why:\n            return\n        self._told[1] = why; log.info(why)",
    ],
)
def test_the_test_above_sees_such_a_class(body: str) -> None:
    (owner,) = ast.parse(f"class C:\n    def f(self, why):\n        {body}\n").body
    assert isinstance(owner, ast.ClassDef)
    assert set(_asked_before_a_line(owner.body[0])) & _assigned(owner.body[0])
