"""Asks slurmctld about a job, by scontrol(1)."""

from __future__ import annotations

import contextlib
import re
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass

from .caller import CLEAN
from .site import Site

_PREEMPTED = re.compile(r" PreemptTime=(\S+)")
"""The first match after BatchFlag is Slurm's own: texts of the user's come later."""
_LOOK = 0.5
"""Seconds between two calls of ``look`` while slurmctld has not answered."""
_ENDED = {"COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "DEADLINE", "OUT_OF_MEMORY", "PREEMPTED",
          "GONE"}  # fmt: skip


@dataclass(frozen=True)
class JobState:
    """A job as slurmctld knows it. ``state`` is its base state, such as RUNNING; ``preempted``: it
    is to make room for another job soon.
    """

    state: str
    uid: int
    restarts: int
    array_job: int = 0
    array_task: int | None = None
    preempted: bool = False

    def is_over(self) -> bool:
        """Whether the job has ended for good."""
        return self.state in _ENDED | {"BOOT_FAIL", "NODE_FAIL"}

    def ends(self, attempt: int) -> bool:
        """Whether this run of it is over for Slurm, or soon will be."""
        return self.restarts > attempt or self.state in _ENDED | {
            "COMPLETING", "NODE_FAIL", "PENDING", "REQUEUED",
        }  # fmt: skip

    def ends_with(self, attempt: int) -> bool:
        """Whether this run of it is the last one as far as Slurm knows."""
        return self.restarts == attempt and self.state in _ENDED | {"COMPLETING"}

    def runs(self, attempt: int) -> bool:
        """Whether this run of it is going on for Slurm."""
        return self.restarts == attempt and self.state == "RUNNING"

    def label(self, job: int) -> str:
        """The job's name for users: ``12``, or ``12_3`` of an array."""
        return str(job) if self.array_task is None else f"{self.array_job}_{self.array_task}"


def ask(
    site: Site, job: int, timeout: float = 10.0, look: Callable[[], None] = lambda: None
) -> JobState | None:
    """The job as slurmctld knows it; None if it does not answer, state ``GONE`` if it no longer
    knows the job. ``look`` is called now and then, and may end the wait by raising.
    """
    command = [site.scontrol, "-o", "show", "job", str(job)]
    try:
        with subprocess.Popen(
            command, env=_environment(site), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, errors="replace",
        ) as asked:  # fmt: skip
            out, err = answer(asked, timeout, look)
    except (OSError, subprocess.TimeoutExpired):
        return None
    if asked.returncode != 0:
        gone = "Invalid job id" in err + out
        return JobState(state="GONE", uid=-1, restarts=0) if gone else None
    return parse(out, job)


def answer(
    asked: subprocess.Popen[str], timeout: float, look: Callable[[], None]
) -> tuple[str, str]:
    """What the program says in that time. If ``look`` raises anything the program is ended."""
    until = time.monotonic() + timeout
    try:
        while (left := until - time.monotonic()) > _LOOK:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return asked.communicate(timeout=_LOOK)
            look()
        return asked.communicate(timeout=max(left, 0.0))
    except BaseException:
        asked.kill()
        raise


def parse(text: str, job: int) -> JobState | None:
    """Find our job in scontrol's output, which has one line a job: an array's id names all its
    tasks.

    The user's own texts may imitate any field. All of them but the job's name come after BatchFlag,
    which follows Restarts.
    """
    for line in text.splitlines():
        if not line.startswith(f"JobId={job} "):
            continue
        fixed, _, rest = line.partition(" BatchFlag=")
        # Where BatchFlag itself is imitated nothing is certain.
        if " BatchFlag=" in rest:
            return None
        # What the name imitates comes before the real field, which counts as the last, except for
        # an array's ids: these come before the name.
        ids, words = _words(fixed.partition(" JobName=")[0]), _words(fixed)
        uid = re.search(r"\((\d+)\)", words.get("UserId", ""))
        task = ids.get("ArrayTaskId", "")
        preempted = _PREEMPTED.search(rest)
        return JobState(
            state=words.get("JobState", ""),
            uid=int(uid[1]) if uid else -1,
            restarts=int(words.get("Restarts", "0") or 0),
            array_job=int(ids.get("ArrayJobId", "0") or 0),
            array_task=int(task) if task.isdigit() else None,
            preempted=preempted is not None and preempted[1] != "None",
        )
    return None


def _words(text: str) -> dict[str, str]:
    return dict(word.split("=", 1) for word in text.split() if "=" in word)


def is_up(site: Site) -> bool:
    """Whether slurmctld answers: only then may we believe "invalid job id"."""
    try:
        done = subprocess.run(
            [site.scontrol, "ping"], env=_environment(site), capture_output=True, timeout=20,
            check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0 and b" UP" in done.stdout


def _environment(site: Site) -> dict[str, str]:
    return CLEAN | ({"SLURM_CONF": site.slurm_conf} if site.slurm_conf else {})
