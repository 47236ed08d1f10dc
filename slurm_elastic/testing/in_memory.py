"""Parts of a daemon that does at once, in one thread, all that it does."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

from slurm_elastic.base.hostlist import compress


class Inline(Executor):
    """Does at once what a cloud's thread would do."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """``fn`` is over when this returns."""
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - as an executor does
            future.set_exception(error)
        return future


class Silent:
    """No wake socket: the test decides when the daemon ticks."""

    def wait(self, timeout: float) -> list[bytes]:
        """Nothing ever comes."""
        del timeout
        return []

    def ring(self) -> None:
        """Nobody hears it."""


def leave_request(
    state: Path, number: int, now: float, kind: str, nodes: Sequence[str],
    jobs: Mapping[int, Sequence[str]], **changes: Any,
) -> str:  # fmt: skip
    """A request of slurmctld's in the spool, as programs/power.py leaves it, with the resume file
    of 22.05; its name.
    """
    file = {
        "jobs": [{"job_id": j, "nodes": compress(of)} for j, of in jobs.items()],
        "all_nodes": compress(nodes),
    }
    body = {
        "kind": kind,
        "hostlist": compress(nodes),
        "received": now,
        "resume_file": file if kind == "resume" else None,
        "resume_file_error": None,
    }
    name = f"{int(changes.get('received', now) * 1e9)}-{number:06d}-{kind}"
    (state / "requests" / f"{name}.json").write_text(json.dumps(body | changes))
    return name
