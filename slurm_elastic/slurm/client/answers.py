"""Slurm's JSON answers to our values, over releases 22.05 to 26.05. Pure.

Measured on 22.05, 24.11 and 26.05. 22.05 (openapi v0.0.38) gives plain numbers and one state word;
data_parser, there from 23.02 on, gives numbers as ``{set, infinite, number}`` and states as lists
(those of jobs from 23.11 on). Either form is read from any release. An element that lacks what it
must have is no ``RawNode`` or ``RawJob`` (msgspec.ValidationError), one of another form raises
TypeError, ValueError or AttributeError.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from sys import intern
from typing import Any

from msgspec import Struct

from slurm_elastic.base.hostlist import expand
from slurm_elastic.model.slurm import ENDED, Reservation, SlurmJob, SlurmNode, SuspendExclusions
from slurm_elastic.model.slurm_words.job_states import HOLDS

_PAIR = re.compile(r"(\w+)=(\S*)")


class RawNode(Struct, gc=False):
    """What we use of an element of ``nodes`` (``sinfo`` or ``scontrol show nodes``, JSON)."""

    name: Any
    state: Any = None
    state_flags: Any = None
    reason: Any = None
    reason_set_by_user: Any = None
    reason_changed_at: Any = None
    partitions: Any = None
    address: Any = None
    port: Any = None
    cpus: Any = None
    real_memory: Any = None
    last_busy: Any = None
    boot_time: Any = None
    weight: Any = None
    comment: Any = None


class RawJob(Struct, gc=False):
    """What we use of an element of ``jobs`` of ``squeue --json``, in whatever form."""

    job_id: Any
    job_state: Any = None
    user_name: Any = None
    user_id: Any = ""
    group_id: Any = None
    account: Any = None
    partition: Any = None
    nodes: Any = None
    state_reason: Any = None
    state_description: Any = None
    start_time: Any = None
    submit_time: Any = None
    eligible_time: Any = None
    end_time: Any = None
    preempt_time: Any = None
    suspend_time: Any = None
    requeue: Any = True
    restart_cnt: Any = None
    name: Any = None
    array_job_id: Any = None
    array_task_id: Any = None
    array_task_string: Any = None
    batch_flag: Any = True
    comment: Any = None
    required_nodes: Any = None
    current_working_directory: Any = None
    standard_output: Any = None
    stdout_expanded: Any = None
    exit_code: Any = None
    node_count: Any = None
    cpus: Any = None
    time_limit: Any = None
    priority: Any = None
    features: Any = None
    tres_per_node: Any = None
    tres_per_job: Any = None
    tres_per_socket: Any = None
    tres_per_task: Any = None
    tres_alloc_str: Any = None
    qos: Any = None
    resv_name: Any = None
    licenses: Any = None
    excluded_nodes: Any = None
    minimum_cpus_per_node: Any = None
    memory_per_node: Any = None
    memory_per_cpu: Any = None


_NO_LIMIT = frozenset({"UNLIMITED", "INFINITE"})
SLURMD_TIMEOUT = 300.0  # Slurm's default (s): slurm.conf(5)
_TASKS = re.compile(r"(\d{1,9})(?:-(\d{1,9})(?::(\d{1,9}))?)?", re.ASCII)


def number(value: object) -> float | None:
    """A number in any of the forms Slurm has for one; None where it is unset or infinite."""
    if type(value) is int:  # most are, of tens of thousands of records
        return float(value)
    if value is None:
        return None
    if isinstance(value, dict):
        if not value.get("set", True) or value.get("infinite", False):
            return None
        value = value.get("number")
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value)


def states(*values: object) -> frozenset[str]:
    """State words of a string, a list or several of them, upper case."""
    words: list[object] = []
    for value in values:
        words += value if isinstance(value, list) else (value,)
    return _states(tuple(words))


def job_states(value: object) -> frozenset[str]:
    """The same of a job, of which 22.05 has one word."""
    found = states(value)
    # What 22.05 has requeued and holds is pending, though its one word does not say so.
    return found | {"PENDING"} if found and found <= HOLDS else found


@functools.lru_cache(maxsize=1024)
def _states(words: tuple[object, ...]) -> frozenset[str]:
    """Few of them are in tens of thousands of records."""
    return frozenset(str(word).upper() for word in words if word)


def errors(told: Iterable[object] | None) -> str:
    """The text of an answer's ``errors``; empty where it has none."""
    return "; ".join(dict.fromkeys(_words(one) for one in told or ()))


def _words(error: object) -> str:
    if not isinstance(error, Mapping):
        return str(error)
    parts = [str(error[key]) for key in ("source", "description", "error") if error.get(key)]
    code = error.get("error_number", error.get("errno"))
    return ": ".join(parts or ["an error without words"]) + (f" ({code})" if code else "")


def node(raw: RawNode) -> SlurmNode:
    """A node of either form."""
    return SlurmNode(
        name=raw.name,
        states=states(raw.state, raw.state_flags),
        reason=raw.reason or "",
        reason_user=raw.reason_set_by_user or "",
        partitions=tuple(raw.partitions or ()),
        address=raw.address or "",
        port=_whole(raw.port, 0),
        cpus=_whole(raw.cpus, 0),
        memory=_whole(raw.real_memory, 0),
        last_busy=number(raw.last_busy) or 0.0,
        boot_time=number(raw.boot_time) or 0.0,
        weight=_whole(raw.weight, 0),
        comment=raw.comment or "",
        reason_at=number(raw.reason_changed_at) or 0.0,
    )


def job(raw: RawJob) -> SlurmJob:
    """A job of either form."""
    found = job_states(raw.job_state)
    nodes, required = raw.nodes or "", raw.required_nodes or ""
    excluded = raw.excluded_nodes or ""
    task, minutes = number(raw.array_task_id), number(raw.time_limit)
    start, end = number(raw.start_time) or 0.0, number(raw.end_time) or 0.0
    wants = (raw.tres_per_node, raw.tres_per_socket, raw.tres_per_task)
    return SlurmJob(
        id=int(raw.job_id),
        states=found,
        # Interned, as thousands of jobs share these texts.
        user=intern(raw.user_name or str(raw.user_id)),
        account=intern(raw.account or ""),
        partitions=partitions(raw.partition or ""),
        nodes=tuple(expand(nodes)) if nodes else (),
        reason=intern(raw.state_reason or ""),
        start=start,
        submit=number(raw.submit_time) or 0.0,
        requeue=bool(raw.requeue),
        restarts=int(number(raw.restart_cnt) or 0),
        name=intern(raw.name or ""),
        uid=_whole(raw.user_id, -1),
        gid=_whole(raw.group_id, -1),
        array=_whole(raw.array_job_id, 0),
        task=None if task is None else int(task),
        batch=bool(raw.batch_flag),
        comment=intern(raw.comment or ""),
        required=tuple(expand(required)) if required else (),
        directory=intern(raw.current_working_directory or ""),
        output=raw.stdout_expanded or raw.standard_output or "",  # later forms have both
        killed_by=_signal(raw.exit_code),
        exit_code=_code(raw.exit_code),
        tasks=array_tasks(raw.array_task_string or ""),
        node_count=max(_whole(raw.node_count, 1), 1),
        cpus=max(_whole(raw.cpus, 1), 1),
        limit=None if minutes is None else int(minutes) * 60,
        priority=_whole(raw.priority, 0),
        gres=intern(" ".join(map(str, filter(None, wants)))),
        job_gres=intern(str(raw.tres_per_job or "")),
        features=intern(raw.features or ""),
        eligible=number(raw.eligible_time) or 0.0,
        description=intern(raw.state_description or ""),
        qos=intern(raw.qos or ""),
        reservation=intern(raw.resv_name or ""),
        licenses=intern(raw.licenses or ""),
        excluded=tuple(expand(excluded)) if excluded else (),
        node_cpus=max(_whole(raw.minimum_cpus_per_node, 1), 1),
        node_memory=_whole(raw.memory_per_node, 0),
        cpu_memory=_whole(raw.memory_per_cpu, 0),
        end=end if found & ENDED else 0.0,
        preempted=preempted(found, start, end, number(raw.preempt_time) or 0.0),
        suspended=(number(raw.suspend_time) or 0.0) if "SUSPENDED" in found else 0.0,
        allocated=intern((raw.tres_alloc_str or "") if nodes else ""),
    )


def preempted(states: frozenset[str], start: float, end: float, since: float) -> float:
    """When Slurm ends a run that it preempts ``since`` then, with a GraceTime; else 0."""
    # The time stays in the record of a job that was requeued for it (24.11, measured).
    return end if "RUNNING" in states and since and start <= since <= end else 0.0


@functools.lru_cache(maxsize=1024)
def partitions(text: str) -> tuple[str, ...]:
    """Names with commas between them; few lists are in tens of thousands of records."""
    return tuple(name for name in text.split(",") if name)


def array_tasks(text: str) -> int:
    """How many tasks ``array_task_string`` names (``0-9,20%4``: 4, as no more may run at a time).
    Slurm writes the limit before or after the closing bracket.

    One that Slurm has cut short (``...``) counts as far as it goes; a text of another form is one.
    """
    if not text:
        return 1
    listed, _, most = text.replace("[", "").replace("]", "").partition("%")
    count = 0
    for part in listed.split(","):
        match = _TASKS.fullmatch(part.strip())
        if match:
            first, last, step = (int(match[i] or 0) for i in (1, 2, 3))
            count += (max(last, first) - first) // max(step, 1) + 1
    return max(min(count, int(most)) if most.isdigit() else count, 1)


def _whole(value: object, unknown: int) -> int:
    if type(value) is int:
        return value
    read = number(value)
    return unknown if read is None else int(read)


def _signal(value: object) -> int:
    """The signal in an exit code: 22.05 gives wait(2)'s status, data_parser a mapping."""
    if isinstance(value, dict):
        killed = value.get("signal")
        killed = killed.get("signal_id", killed.get("id")) if isinstance(killed, dict) else None
        return _whole(killed, 0)
    return _whole(value, 0) & 0x7F


def _code(value: object) -> int:
    if isinstance(value, dict):
        return _whole(value.get("return_code"), 0)
    return _whole(value, 0) >> 8 & 0xFF


def slurmd_timeout(text: str) -> float:
    """SlurmdTimeout (s) in ``scontrol show config``; Slurm's default where it is not told."""
    found = re.search(r"^SlurmdTimeout\s*=\s*(\d+)", text, re.MULTILINE)
    return float(found[1]) if found else SLURMD_TIMEOUT


def reservations(text: str) -> tuple[Reservation, ...]:
    """The lines of ``scontrol --oneliner show reservations``; ValueError for another form."""
    found = []
    for line in text.splitlines():
        if not line.startswith("ReservationName="):
            continue
        values = dict(_PAIR.findall(line))
        nodes = values.get("Nodes", "")
        found.append(
            Reservation(
                name=values["ReservationName"],
                start=_local(values.get("StartTime", "")),
                end=_local(values.get("EndTime", "")),
                nodes=() if nodes in ("", "(null)") else tuple(expand(nodes)),
                flags=frozenset(values.get("Flags", "").upper().split(",")) - {""},
                # Slurm names cores only if it keeps some of a node and not all.
                is_partial="CoreIDs=" in line,
                owners=(*_listed(values.get("Users")), *_listed(values.get("Accounts"))),
            )
        )
    return tuple(found)


def excluded_nodes(text: str) -> dict[int, tuple[str, ...]]:
    """By job, of ``squeue --format=%A|%x``; ValueError for another form."""
    rows = (line.strip().partition("|") for line in text.splitlines() if line.strip())
    return {int(job): tuple(expand(nodes)) for job, _, nodes in rows if nodes not in ("", "(null)")}


def max_times(text: str) -> dict[str, float | None]:
    """MaxTime (s, None: no limit) by partition, of ``scontrol --oneliner show partition``;
    ValueError for another form.
    """
    return _partition_times(text, "MaxTime", "UNLIMITED")


def default_times(text: str) -> dict[str, float | None]:
    """The same of DefaultTime, for the partitions that set it."""
    return _partition_times(text, "DefaultTime", "NONE")


def _partition_times(text: str, key: str, absent: str) -> dict[str, float | None]:
    found: dict[str, float | None] = {}
    for line in text.splitlines():
        values = dict(_PAIR.findall(line))
        limit = values.get(key, absent)
        if "PartitionName" in values and limit != "NONE":
            found[values["PartitionName"]] = None if limit in _NO_LIMIT else _seconds(limit)
    return found


def free_licenses(text: str) -> dict[str, int]:
    """By name, of ``scontrol --oneliner show licenses``; ValueError for another form."""
    rows = (dict(_PAIR.findall(line)) for line in text.splitlines())
    return {row["LicenseName"]: int(row["Free"]) for row in rows if "LicenseName" in row}


def _seconds(text: str) -> float:
    """Of ``[DAYS-]HOURS:MINUTES:SECONDS``."""
    days, _, clock = text.rpartition("-")
    hours, minutes, seconds = (int(part) for part in clock.split(":"))
    return float(((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds)


def partition_states(text: str) -> dict[str, str]:
    """The state by partition, of ``scontrol --oneliner show partition``."""
    rows = (dict(_PAIR.findall(line)) for line in text.splitlines())
    return {row["PartitionName"]: row["State"] for row in rows if "PartitionName" in row}


def slurmctld_started(text: str) -> float:
    """BOOT_TIME in ``scontrol show config`` (Unix time); ValueError for another form."""
    found = re.search(r"^BOOT_TIME\s*=\s*(\S+)", text, re.MULTILINE)
    return _local(found[1] if found else "")


def suspend_exclusions(text: str) -> SuspendExclusions:
    """SuspendExc* in ``scontrol show config``; ValueError for another form."""
    found = dict(re.findall(r"^(SuspendExc\w+)\s*=\s*(.*?)\s*$", text, re.MULTILINE))
    # ``pub[1-4]:2`` keeps any two of these nodes up.
    nodes = re.sub(r":\d+(?=,|$)", "", ",".join(_listed(found.get("SuspendExcNodes"))))
    return SuspendExclusions(
        nodes=tuple(expand(nodes)) if nodes else (),
        partitions=_listed(found.get("SuspendExcParts")),
        states=tuple(word.upper() for word in _listed(found.get("SuspendExcStates"))),
    )


def _listed(text: str | None) -> tuple[str, ...]:
    """The words between commas; without Slurm's word for an empty list."""
    return tuple(word for word in (text or "").split(",") if word not in ("", "(null)"))


def _local(text: str) -> float:
    """The Unix time of a time as Slurm's commands print it."""
    return datetime.fromisoformat(text).timestamp()


def version(text: str) -> tuple[int, int]:
    """``slurm-wlm 22.05.8`` or ``slurm 24.11.5`` to (22, 5); ValueError for anything else."""
    words = text.split()
    parts = words[-1].split(".") if words else []
    if len(parts) < 2 or not parts[0].isdigit() or not parts[1].isdigit():
        raise ValueError(f"{text!r} does not end in a Slurm version")
    return int(parts[0]), int(parts[1])
