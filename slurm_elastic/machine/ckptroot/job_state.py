"""Ask slurmctld about a job, by scontrol(1)."""

from __future__ import annotations

import calendar
import contextlib
import re
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass

from .caller import CLEAN
from .site import HelperSite

_PREEMPTED = re.compile(r" PreemptTime=(\S+)")
"""The first match after BatchFlag is Slurm's own: the user's texts come later in the line."""
_SUBMITTED = re.compile(r" SubmitTime=(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)")
_NODES = re.compile(r" NodeList=(\S+) BatchHost=(\S+) NumNodes=(\d+)")
"""These come before all texts of the user except the job's name and dependency."""
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


def ask(
    site: HelperSite, job: int, timeout: float = 10.0, look: Callable[[], None] = lambda: None
) -> JobState | None:
    """Return the job as slurmctld knows it, or None if slurmctld does not answer.

    The state is ``GONE`` if slurmctld no longer knows the job. ``look`` is called from time to
    time; it may end the wait by raising.
    """
    command = [site.scontrol, "-o", "show", "job", str(job)]
    try:
        with subprocess.Popen(
            command, env=environment(site), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, errors="replace",
        ) as process:  # fmt: skip
            out, err = answer(process, timeout, look)
    except (OSError, subprocess.TimeoutExpired):
        return None
    if process.returncode != 0:
        is_unknown = "Invalid job id" in err + out
        return JobState(state="GONE", uid=-1, restarts=0) if is_unknown else None
    return parse(out, job)


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


def parse(text: str, job: int) -> JobState | None:
    """Find our job in scontrol's output, which has one line per job: an array's id lists all its
    tasks.

    The user's own texts may imitate any field. Except for the job's name, they come after
    BatchFlag, which follows Restarts. A name with a line feed may imitate a whole record.
    """
    # Not splitlines(): Slurm ends lines by line feeds alone.
    lines = [line for line in text.split("\n") if line]
    for line in lines:
        if not line.startswith(f"JobId={job} "):
            continue
        fixed, _, after_batch_flag = line.partition(" BatchFlag=")
        if len(lines) > 1 and f" ArrayJobId={job} " not in fixed.partition(" JobName=")[0]:
            return None  # Slurm has one record for this number, so a text of its user has more
        # If BatchFlag itself is imitated, no field can be trusted.
        if " BatchFlag=" in after_batch_flag:
            return None
        # Fields imitated in the job's name come before the real ones, and the last one wins. The
        # ids of an array come before the name, so read them from there.
        ids, fields = _fields(fixed.partition(" JobName=")[0]), _fields(fixed)
        uid = re.search(r"\((\d+)\)", fields.get("UserId", ""))
        task = ids.get("ArrayTaskId", "")
        preempted = _PREEMPTED.search(after_batch_flag)
        nodes = _NODES.search(after_batch_flag)
        submitted = _SUBMITTED.search(after_batch_flag)
        return JobState(
            state=fields.get("JobState", ""),
            uid=int(uid[1]) if uid else -1,
            restarts=int(fields.get("Restarts", "0") or 0),
            array_job=int(ids.get("ArrayJobId", "0") or 0),
            array_task=int(task) if task.isdigit() else None,
            preempted=preempted is not None and preempted[1] != "None",
            nodes=nodes[1] if nodes else "",
            batch_host=nodes[2] if nodes else "",
            node_count=int(nodes[3]) if nodes else 1,
            hit_limit=fields.get("Reason") == "TimeLimit",
            submitted=_unix_time(submitted[1]) if submitted else 0.0,
        )
    return None


def _unix_time(text: str) -> float:
    try:
        return float(calendar.timegm(time.strptime(text, "%Y-%m-%dT%H:%M:%S")))
    except ValueError:
        return 0.0


def _fields(text: str) -> dict[str, str]:
    return dict(word.split("=", 1) for word in text.split() if "=" in word)


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
