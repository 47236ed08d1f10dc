"""Work in other threads: its exception reaches the log, though nobody reads its Future."""

from __future__ import annotations

import ast
import re
import sys
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from patience import patience

import slurm_elastic
from slurm_elastic.base.processes.background import in_background, submit

PACKAGE = Path(slurm_elastic.__file__).parent
READS_ALL = {"base/processes/background.py", "providers/base/parallel.py", "cli/operate/doctor.py"}
"""Modules that ask every Future of theirs for its result, and `submit` itself."""
RETURNS_FUTURES = re.compile(r"\b(each|map|create_task|ensure_future|run_in_executor)\(")
OWN_THREADS = {"crew", "output_writers", "sandbox", "_head", "slurm"}
"""Names of objects whose ``submit`` is no executor's."""


def test_an_exception_is_logged_with_the_name_of_the_work(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with ThreadPoolExecutor(1) as workers:
        failed = submit(workers, "end machines", int, "no number")
    assert "no number" in str(failed.exception())
    (record,) = caplog.records
    assert "background task end machines failed: ValueError" in record.getMessage()
    assert record.exc_info, "with the place"


def test_nothing_is_logged_of_work_that_succeeds_or_is_cancelled(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Cancelling(ThreadPoolExecutor):
        def submit(self, *_: object, **__: object) -> Future[int]:  # type: ignore[override]
            future: Future[int] = Future()
            future.cancel()
            future.set_running_or_notify_cancel()
            return future

    with ThreadPoolExecutor(1) as workers:
        assert submit(workers, "count", int, "5").result() == 5
    with Cancelling(1) as workers, pytest.raises(CancelledError):
        submit(workers, "count", int, "5").result()
    assert not caplog.records


def test_a_thread_for_one_task_logs_its_exception(caplog: pytest.LogCaptureFixture) -> None:
    done: list[int] = []
    in_background("count", done.append, 1).join(patience(30))
    assert (done, caplog.records) == ([1], [])
    in_background("close host", sys.exit, "no such host").join(patience(30))
    (record,) = caplog.records
    assert "background task close host failed: SystemExit: no such host" in record.getMessage()


def test_no_result_of_parallel_work_is_thrown_away() -> None:
    """A bare ``each(...)``, ``workers.map(...)`` or ``create_task(...)`` loses all exceptions."""
    thrown_away = [
        f"{path.relative_to(PACKAGE)}:{statement.lineno}"
        for path in PACKAGE.rglob("*.py")
        if RETURNS_FUTURES.search(text := path.read_text())
        for statement in ast.walk(ast.parse(text))
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call)
        if RETURNS_FUTURES.search(ast.unparse(statement.value.func) + "(")
    ]
    assert thrown_away == []


def test_no_module_hands_work_to_a_thread_in_another_way() -> None:
    """A bare ``executor.submit`` loses the exception."""
    bare = [
        f"{name}:{call.lineno}"
        for path in PACKAGE.rglob("*.py")
        if (name := str(path.relative_to(PACKAGE))) not in READS_ALL
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr == "submit"
        and ast.unparse(call.func.value).rsplit(".")[-1] not in OWN_THREADS
    ]
    assert bare == []
