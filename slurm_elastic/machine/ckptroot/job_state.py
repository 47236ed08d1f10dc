"""Ask slurmctld about a job, by squeue(1).

Users write parts of a job's record, such as its name, which may have line feeds. ``scontrol show
job`` prints them between Slurm's own fields, so its text can be forged. squeue prints only the
fields that we name, each with a random mark after it.
"""

from __future__ import annotations

import contextlib
import re
import secrets
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass

from .caller import CLEAN
from .site import HelperSite

_FIELDS = (
    "JobID", "ArrayJobID", "ArrayTaskID", "State", "Reason", "UserID", "RestartCnt", "SubmitTime",
    "PreemptTime", "NodeList", "BatchHost", "NumNodes",
)  # fmt: skip
"""No user writes any of them."""
_NONE = {"", "(null)", "N/A", "n/a", "None", "NONE", "Unknown"}
_POLL_EVERY_S = 0.5
"""Seconds between two calls of ``look`` while slurmctld has not answered."""
_ENDED = {"COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "DEADLINE", "OUT_OF_MEMORY", "PREEMPTED",
          "GONE"}  # fmt: skip
_CUT_OFF = {"TIMEOUT", "PREEMPTED"}


@dataclass(frozen=True)
class JobState:
    """A job as slurmctld knows it.

    ``state``: its base state, such as RUNNING; COMPLETING hides the state that follows.
    ``restarts``: how often Slurm has restarted it. ``preempted``: it must soon make room for
    another job. ``nodes``: its ``node_count`` nodes as Slurm writes a list; ``batch_host``: the
    node that runs its script. ``hit_limit``: Slurm gives its time limit as the reason of its state.
    ``submitted``: Unix time, which Slurm sets anew at each requeue; 0 if unknown.
    """

    state: str
    uid: int
    restarts: int
    array_job: int = 0
    array_task: int | None = None
    preempted: bool = False
    nodes: str = ""
    batch_host: str = ""
    node_count: int = 1
    hit_limit: bool = False
    submitted: float = 0.0

    def is_over(self) -> bool:
        """Return whether the job has ended for good."""
        return self.state in _ENDED | {"BOOT_FAIL", "NODE_FAIL"}

    def ends(self, attempt: int) -> bool:
        """Return whether this run is over in Slurm, or soon will be."""
        return self.restarts > attempt or self.state in _ENDED | {
            "COMPLETING", "NODE_FAIL", "PENDING", "REQUEUED",
        }  # fmt: skip

    def ends_with(self, attempt: int) -> bool:
        """Return whether this run is the job's last one as far as Slurm knows."""
        # A slurmctld without its state kills all jobs. They come back with that state.
        if self.state == "GONE":
            return False
        has_ended = self.restarts == attempt and self.state in _ENDED | {"COMPLETING"}
        return has_ended and not self.was_cut_off()

    def was_cut_off(self) -> bool:
        """Return whether Slurm has ended the run at its time limit or by a preemption. The head
        may requeue such a job, which then continues from its newest image.
        """
        if self.state == "COMPLETING":
            return self.hit_limit or self.preempted
        return self.state in _CUT_OFF

    def runs(self, attempt: int) -> bool:
        """Return whether this run is active in Slurm."""
        return self.restarts == attempt and self.state == "RUNNING"

    def is_current(self, attempt: int) -> bool:
        """Return whether this run is the job's last one so far, at work or ended."""
        return self.restarts == attempt and self.state not in {"GONE", "PENDING", "REQUEUED"}

    def label(self, job: int) -> str:
        """Return the job's name for users: ``12``, or ``12_3`` of an array."""
        return str(job) if self.array_task is None else f"{self.array_job}_{self.array_task}"


_SQUEUE = {"SLURM_TIME_FORMAT": "%s", "SQUEUE_ARRAY_UNIQUE": "1"}
"""Variables of squeue: on 22.05 a requeued task of a waiting array has no row of its own without
the second one. 24.11 shows it anyway, and refuses the option ``--array-unique`` (measured).
"""


def ask(
    site: HelperSite, job: int, timeout: float = 10.0, look: Callable[[], None] = lambda: None
) -> JobState | None:
    """Return the job as slurmctld knows it, or None if slurmctld does not answer.

    The state is ``GONE`` if slurmctld no longer knows the job. ``look`` is called from time to
    time; it may end the wait by raising.
    """
    mark = f"<{secrets.token_hex(8)}>"
    *inner_fields, end_field = _FIELDS
    marked = [f"{field}:0{mark}" for field in inner_fields]
    fields = ",".join((*marked, f"{end_field}:0{end_mark(mark)}"))
    command = [
        site.program("squeue"), "--all", "--noheader", "--states=all", f"--jobs={job}",
        "--Format", fields,
    ]  # fmt: skip
    try:
        with subprocess.Popen(
            command, env=environment(site) | _SQUEUE, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace",
        ) as process:  # fmt: skip
            out, err = answer(process, timeout, look)
    except (OSError, subprocess.TimeoutExpired):
        return None
    if process.returncode != 0:
        is_unknown = "Invalid job id" in err + out
        return JobState(state="GONE", uid=-1, restarts=0) if is_unknown else None
    return parse(out, mark, job)


def answer(
    process: subprocess.Popen[str], timeout: float, look: Callable[[], None]
) -> tuple[str, str]:
    """Return the program's output after it has ended. If ``look`` raises, kill the program.

    subprocess.TimeoutExpired after ``timeout`` seconds.
    """
    until = time.monotonic() + timeout
    try:
        while (remaining := until - time.monotonic()) > _POLL_EVERY_S:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return process.communicate(timeout=_POLL_EVERY_S)
            look()
        return process.communicate(timeout=max(remaining, 0.0))
    except BaseException:
        process.kill()
        raise


def end_mark(mark: str) -> str:
    """Return the mark after a record's last field. Neither mark is a part of the other."""
    return f"</{mark[1:]}"


def parse(text: str, mark: str, job: int) -> JobState | None:
    """Find our job in squeue's output: the number of an array's first task lists all its tasks.
    None if the text has another form, or does not have the job.
    """
    # Not by lines: whatever stands in a field, only a mark ends it.
    for record in text.split(f"{end_mark(mark)}\n")[:-1]:
        values = record.split(mark)
        if len(values) != len(_FIELDS):
            return None
        if values[0] == str(job):
            return _state(*values[1:])
    return None


def _state(
    array: str, task: str, state: str, reason: str, uid: str, restarts: str, submitted: str,
    preempted: str, nodes: str, batch_host: str, node_count: str,
) -> JobState:  # fmt: skip
    return JobState(
        state=state,
        uid=_whole(uid, -1),
        restarts=_whole(restarts, 0),
        array_job=0 if task in _NONE else _whole(array, 0),
        array_task=int(task) if task.isdecimal() else None,
        preempted=preempted not in _NONE,
        nodes="" if nodes in _NONE else nodes,
        batch_host="" if batch_host in _NONE else batch_host,
        node_count=_whole(node_count, 1),
        hit_limit=reason == "TimeLimit",
        submitted=float(_whole(submitted, 0)),
    )


def _whole(value: str, unknown: int) -> int:
    return int(value) if value.isdecimal() else unknown


def is_up(site: HelperSite) -> bool:
    """Return whether slurmctld answers. Only then is "invalid job id" credible."""
    try:
        result = subprocess.run(
            [site.scontrol, "ping"], env=environment(site), capture_output=True, timeout=20,
            check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return False
    return result.returncode == 0 and b" UP" in result.stdout


def next_number(site: HelperSite) -> int:
    """Return the number that slurmctld gives to the next job; 0 if it does not say."""
    command = [site.scontrol, "show", "config"]
    try:
        result = subprocess.run(
            command, env=environment(site), capture_output=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    number = re.search(rb"^NEXT_JOB_ID\s*=\s*(\d+)", result.stdout, re.MULTILINE)
    return int(number[1]) if number and result.returncode == 0 else 0


def environment(site: HelperSite) -> dict[str, str]:
    """Return the variables of root's calls of Slurm's commands, which print times in TZ."""
    return CLEAN | {"TZ": "UTC0"} | ({"SLURM_CONF": site.slurm_conf} if site.slurm_conf else {})
