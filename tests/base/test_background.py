"""Work in other threads: its exception reaches the log, though nobody reads its Future."""

from __future__ import annotations

import ast
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from pathlib import Path

import pytest

import slurm_elastic
from slurm_elastic.base.background import submit

PACKAGE = Path(slurm_elastic.__file__).parent
READS_ALL = {"base/background.py", "providers/base/parallel.py", "cli/doctor.py"}
"""Modules that ask every Future of theirs for its result, and `submit` itself."""
OWN_THREADS = {"crew", "sandbox", "_head", "slurm"}
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
