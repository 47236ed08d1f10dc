"""The queue in the form of ``squeue --Format``, which we use with 22.05. Pure.

22.05's ``squeue --json`` takes 1 s of processor time and 470 MB for 10,000 jobs (measured), for any
fields. This form takes a twentieth of that. The content is the same, because 22.05 has one word for
a job's state in either form. Each field ends in a random mark, another one each time. The last one
ends in a mark of its own: a field that begins with a line break must not look like a record's end.
"""

from __future__ import annotations

import functools
import re
from sys import intern

from slurm_elastic.base.hostlist import expand, expand_of_user
from slurm_elastic.model.slurm import ENDED, SlurmJob
from slurm_elastic.slurm.client.answers import (
    job_states,
    limit_end,
    max_running_tasks,
    partitions,
    preempted,
    task_list,
    waiting_tasks,
)
from slurm_elastic.slurm.client.output_names import with_default_name, with_output_names

FIELDS = (
    "JobID", "ArrayJobID", "ArrayTaskID", "State", "UserName", "UserID", "GroupID", "Account",
    "Partition", "NodeList", "Reason", "ReasonList", "StartTime", "SubmitTime", "EligibleTime",
    "Requeue", "RestartCnt", "Name", "BatchFlag", "Comment", "ReqNodes", "WorkDir", "STDOUT",
    "exit_code", "NumNodes", "NumCPUs", "TimeLimit", "MinTime", "PriorityLong", "Feature",
    "QOS", "Reservation", "MinCpus", "MinMemory", "EndTime", "PreemptTime", "STDERR", "tres-alloc",
    "tres-per-job", "tres-per-node", "tres-per-socket", "tres-per-task", "Licenses",
    "cpus-per-tres", "mem-per-tres", "HetJobID",
)  # fmt: skip
ENVIRONMENT = {"SLURM_TIME_FORMAT": "%s"}
"""Variables of squeue, by which it shows times as Unix time."""
_NONE = frozenset({"", "(null)", "N/A", "n/a", "NONE", "Unknown"})
_LIMIT = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", re.ASCII)


def options(mark: str) -> tuple[str, ...]:
    """Options for squeue: all jobs, each field at its full length with ``mark`` after it, the last
    one with the end mark.
    """
    *inner_fields, end_field = FIELDS
    marked = [f"{field}:0{mark}" for field in inner_fields]
    fields = ",".join((*marked, f"{end_field}:0{end_mark(mark)}"))
    return ("--noheader", "--states=all", "--noconvert", "--sort=i", "--Format", fields)


def end_mark(mark: str) -> str:
    """The mark after the last field of a record. Neither mark is a part of the other."""
    return f"</{mark.removeprefix('<')}"


class QueueText:
    """``take`` each piece of the text, then ``close``. ``values`` has the jobs. ValueError for
    another text.
    """

    def __init__(self, mark: str) -> None:
        self._mark = mark
        self._end = f"{end_mark(mark)}\n".encode()
        self._incomplete = b""
        self.values: list[SlurmJob] = []

    def take(self, data: bytes) -> None:
        """Add the next piece of the text."""
        *complete, self._incomplete = (self._incomplete + data).split(self._end)
        self.values += (self._job(text) for text in complete)

    def close(self) -> None:
        """End the text."""
        if self._incomplete:
            raise ValueError(f"its last record breaks off: {self._incomplete[:80]!r}")

    def _job(self, text: bytes) -> SlurmJob:
        values = text.decode(errors="replace").split(self._mark)
        if len(values) != len(FIELDS):
            raise ValueError(f"{len(values)} fields where {len(FIELDS)} were asked for")
        return with_output_names(with_default_name(_job(*values)))


def _job(
    number: str, array: str, task: str, state: str, user: str, uid: str, gid: str, account: str,
    partition: str, nodes: str, reason: str, reason_list: str, start: str, submit: str,
    eligible: str, requeue: str, restarts: str, name: str, batch: str, comment: str,
    required: str, directory: str, output: str, exit_code: str, node_count: str, cpus: str,
    limit: str, min_limit: str, priority: str, features: str, qos: str, reservation: str,
    node_cpus: str, memory: str, end: str, preempt: str, error_output: str, allocated: str,
    job_wants: str, *tres_and_licenses: str,
) -> SlurmJob:  # fmt: skip
    # `exit_code` is the status that wait(2) gives: signal in the low bits, exit code above.
    code, states = _whole(exit_code, 0), job_states(state, has_nodes=nodes not in _NONE)
    *gres_requests, licenses, gres_cpus, gres_memory, het_job = tres_and_licenses
    limit_s, ends_at = _limit(limit), _time(end)
    grace_end = preempted(states, _time(start), ends_at, _time(preempt))
    # intern(): tens of thousands of jobs share few of these texts.
    return SlurmJob(
        id=int(number),
        states=states,
        user=intern(user),
        account=intern(_text(account)),
        partitions=partitions(partition),
        nodes=tuple(expand(nodes)) if nodes not in _NONE else (),
        reason=intern(reason),
        start=_time(start),
        submit=_time(submit),
        requeue=requeue == "1",
        restarts=_whole(restarts, 0),
        name=intern(_text(name)),
        uid=_whole(uid, -1),
        gid=_whole(gid, -1),
        array=0 if task in _NONE else int(array),
        task=int(task) if task.isdecimal() else None,
        batch=batch == "1",
        comment=intern(_text(comment)),
        required=() if required in _NONE else expand_of_user(required),
        directory=intern(_text(directory)),
        output=_text(output),
        error_output=_text(error_output),
        killed_by=code & 0x7F,
        exit_code=code >> 8 & 0xFF,
        tasks=1 if task in _NONE else waiting_tasks(task),
        task_list="" if task in _NONE or task.isdecimal() else task_list(task),
        max_running_tasks=0 if task in _NONE else max_running_tasks(task),
        node_count=max(_whole(node_count, 1), 1),
        cpus=max(_whole(cpus, 1), 1),
        limit=limit_s,
        min_limit=_limit(min_limit) or 0,
        priority=_whole(priority, 0),
        gres=_joined(tuple(gres_requests)),
        job_gres=_joined((job_wants,)),
        features=intern(_text(features)),
        eligible=_time(eligible),
        description=intern(_description(reason, reason_list)),
        qos=intern(_text(qos)),
        reservation=intern(_text(reservation)),
        licenses=intern(_text(licenses)),
        node_cpus=max(_whole(node_cpus, 1), 1),
        node_memory=_memory(memory),
        gres_cpus=_joined((gres_cpus,)),
        gres_memory=_joined((gres_memory,)),
        het_job=_whole(het_job, 0),
        end=ends_at if states & ENDED else 0.0,
        limit_ends_at=limit_end(states, ends_at, limit_s, grace_end),
        preempted=grace_end,
        allocated="" if nodes in _NONE else _joined((allocated,)),
    )


def _whole(value: str, unknown: int) -> int:
    return int(value) if value.isdecimal() else unknown


def _memory(value: str) -> int:
    """The MiB of ``MinMemory``, which does not show whether it is for a node or for a CPU."""
    # ``--noconvert`` keeps Slurm from writing 4G for 4096M.
    return int(value.removesuffix("M")) if value.removesuffix("M").isdecimal() else 0


def _text(value: str) -> str:
    return "" if value == "(null)" else value


@functools.lru_cache(maxsize=1024)
def _joined(values: tuple[str, ...]) -> str:
    """Join the parts of a text. Cached, because tens of thousands of records have only few
    different texts.
    """
    return " ".join(value for value in values if value not in _NONE)


def _time(value: str) -> float:
    return 0.0 if value in _NONE else float(value)


@functools.lru_cache(maxsize=1024)
def _limit(value: str) -> int | None:
    """The seconds of ``[DAYS-][HOURS:]MINUTES:SECONDS``. None for a word such as UNLIMITED."""
    match = _LIMIT.fullmatch(value)
    if match is None:
        return None
    days, hours, minutes, seconds = (int(field or 0) for field in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def _description(reason: str, reason_list: str) -> str:
    """Slurm's text in parentheses beside the reason. A running job has its nodes there instead."""
    if not reason_list.startswith("("):
        return ""
    text = reason_list[1:].removesuffix(")")
    return "" if text == reason else text.replace("_", " ")
