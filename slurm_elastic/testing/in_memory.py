"""Parts of a daemon that does all its work in one thread, without waiting."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

from slurm_elastic.base.hostlist import compress


class Inline(Executor):
    """An executor that runs a call in ``submit`` itself, in place of a cloud's thread."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run ``fn`` to its end."""
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - as an executor does
            future.set_exception(error)
        return future


class Silent:
    """Takes the place of the wake socket and never wakes the daemon. The test decides when it
    ticks.
    """

    def wait(self, timeout: float) -> list[bytes]:
        """Return no messages."""
        del timeout
        return []

    def ring(self) -> None:
        """Do nothing."""


def leave_request(
    state: Path, number: int, now: float, kind: str, nodes: Sequence[str],
    jobs: Mapping[int, Sequence[str]], **changes: Any,
) -> str:  # fmt: skip
    """Write a request of slurmctld into the spool, as programs/power.py does, with the resume file
    of 22.05. Returns its name.
    """
    file = {
        "jobs": [{"job_id": j, "nodes": compress(job_nodes)} for j, job_nodes in jobs.items()],
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
