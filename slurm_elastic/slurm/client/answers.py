"""Slurm's JSON answers as our values, for releases 22.05 to 26.05. Pure.

Measured on 22.05, 24.11 and 26.05. 22.05 (openapi v0.0.38) gives plain numbers and one state word.
data_parser, since 23.02, gives numbers as ``{set, infinite, number}`` and states as lists (for jobs
since 23.11). We read both forms from any release. An element without its required fields is no
``RawNode`` or ``RawJob`` (msgspec.ValidationError). An element of another form raises TypeError,
ValueError or AttributeError.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from sys import intern
from typing import Any

from msgspec import Struct

from slurm_elastic.base.hostlist import expand, expand_of_user
from slurm_elastic.model.slurm import (
    ENDED,
    JobMail,
    Reservation,
    SlurmJob,
    SlurmNode,
    SuspendExclusions,
)
from slurm_elastic.model.slurm_words.job_states import HOLDS
from slurm_elastic.slurm.client.command import unix_time
from slurm_elastic.slurm.client.output_names import with_output_names

_SIGNALING = frozenset({"SIGNALING"})
_PAIR = re.compile(r"(\w+)=(\S*)")


class RawNode(Struct, gc=False):
    """The fields that we use of an element of ``nodes`` (``sinfo`` or ``scontrol show nodes``)."""

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
    """The fields that we use of an element of ``jobs`` of ``squeue --json``, in any form."""

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
    standard_error: Any = None
    stderr_expanded: Any = None
    exit_code: Any = None
    node_count: Any = None
    cpus: Any = None
    time_limit: Any = None
    time_minimum: Any = None
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
    cpus_per_tres: Any = None
    memory_per_tres: Any = None
    het_job_id: Any = None


_NO_LIMIT = frozenset({"UNLIMITED", "INFINITE"})
SLURMD_TIMEOUT_S = 300.0  # Slurm's default: slurm.conf(5)
_TASKS = re.compile(r"(\d{1,9})(?:-(\d{1,9})(?::(\d{1,9}))?)?", re.ASCII)


def number(value: object) -> float | None:
    """A number in any of Slurm's forms. None if it is unset or infinite."""
    if type(value) is int:  # the usual case in tens of thousands of records
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
    """The state words of strings and lists, in upper case."""
    state_words: list[object] = []
    for value in values:
        state_words += value if isinstance(value, list) else (value,)
    return _states(tuple(state_words))


def job_states(value: object, *, has_nodes: bool) -> frozenset[str]:
    """The states of a job. 22.05 gives only one word."""
    state_words = states(value)
    # 22.05's only word while a SIGSTOP or SIGCONT is on its way, which takes until all nodes of the
    # job have answered. As STOPPED, the word stays with a job that is requeued.
    if state_words == _SIGNALING:
        return state_words | {"RUNNING" if has_nodes else "PENDING"}
    # A job that 22.05 has requeued and holds is pending, although its only word does not say so.
    return state_words | {"PENDING"} if state_words and state_words <= HOLDS else state_words


@functools.lru_cache(maxsize=1024)
def _states(state_words: tuple[object, ...]) -> frozenset[str]:
    """The state words of a record. Cached, because tens of thousands of records have only few
    combinations.
    """
    return frozenset(str(word).upper() for word in state_words if word)


def errors(listed_errors: Iterable[object] | None) -> str:
    """The text of an answer's ``errors``. Empty if there are none."""
    return "; ".join(dict.fromkeys(_error_text(error) for error in listed_errors or ()))


def _error_text(error: object) -> str:
    if not isinstance(error, Mapping):
        return str(error)
    texts = [str(error[key]) for key in ("source", "description", "error") if error.get(key)]
    code = error.get("error_number", error.get("errno"))
    return ": ".join(texts or ["an error without a text"]) + (f" ({code})" if code else "")


def node(record: RawNode) -> SlurmNode:
    """A node of an answer in either form."""
    return SlurmNode(
        name=record.name,
        states=states(record.state, record.state_flags),
        reason=record.reason or "",
        reason_user=record.reason_set_by_user or "",
        partitions=tuple(record.partitions or ()),
        address=record.address or "",
        port=_whole(record.port, 0),
        cpus=_whole(record.cpus, 0),
        memory=_whole(record.real_memory, 0),
        last_busy=number(record.last_busy) or 0.0,
        boot_time=number(record.boot_time) or 0.0,
        weight=_whole(record.weight, 0),
        comment=record.comment or "",
        reason_at=number(record.reason_changed_at) or 0.0,
    )


def job(record: RawJob) -> SlurmJob:
    """A job of an answer in either form."""
    nodes = record.nodes or ""
    states = job_states(record.job_state, has_nodes=bool(nodes))
    task, minutes = number(record.array_task_id), number(record.time_limit)
    limit = None if minutes is None else int(minutes) * 60
    start, end = number(record.start_time) or 0.0, number(record.end_time) or 0.0
    grace_end = preempted(states, start, end, number(record.preempt_time) or 0.0)
    gres_requests = (record.tres_per_node, record.tres_per_socket, record.tres_per_task)
    shown = SlurmJob(
        id=int(record.job_id),
        states=states,
        # Interned, because thousands of jobs share these texts.
        user=intern(record.user_name or str(record.user_id)),
        account=intern(record.account or ""),
        partitions=partitions(record.partition or ""),
        nodes=tuple(expand(nodes)) if nodes else (),
        reason=intern(record.state_reason or ""),
        start=start,
        submit=number(record.submit_time) or 0.0,
        requeue=bool(record.requeue),
        restarts=int(number(record.restart_cnt) or 0),
        name=intern(record.name or ""),
        uid=_whole(record.user_id, -1),
        gid=_whole(record.group_id, -1),
        array=_whole(record.array_job_id, 0),
        task=None if task is None else int(task),
        batch=bool(record.batch_flag),
        comment=intern(record.comment or ""),
        required=expand_of_user(record.required_nodes or ""),
        directory=intern(record.current_working_directory or ""),
        output=record.stdout_expanded or record.standard_output or "",  # 26.05 has both
        error_output=record.stderr_expanded or record.standard_error or "",
        killed_by=_signal(record.exit_code),
        exit_code=_code(record.exit_code),
        tasks=waiting_tasks(record.array_task_string or ""),
        task_list="" if task is not None else task_list(record.array_task_string or ""),
        max_running_tasks=max_running_tasks(record.array_task_string or ""),
        node_count=max(_whole(record.node_count, 1), 1),
        cpus=max(_whole(record.cpus, 1), 1),
        limit=limit,
        min_limit=_whole(record.time_minimum, 0) * 60,
        priority=_whole(record.priority, 0),
        gres=intern(" ".join(map(str, filter(None, gres_requests)))),
        job_gres=intern(str(record.tres_per_job or "")),
        features=intern(record.features or ""),
        eligible=number(record.eligible_time) or 0.0,
        description=intern(record.state_description or ""),
        qos=intern(record.qos or ""),
        reservation=intern(record.resv_name or ""),
        licenses=intern(record.licenses or ""),
        excluded=expand_of_user(record.excluded_nodes or ""),
        node_cpus=max(_whole(record.minimum_cpus_per_node, 1), 1),
        node_memory=_whole(record.memory_per_node, 0),
        cpu_memory=_whole(record.memory_per_cpu, 0),
        gres_cpus=intern(str(record.cpus_per_tres or "")),
        gres_memory=intern(str(record.memory_per_tres or "")),
        het_job=_whole(record.het_job_id, 0),
        end=end if states & ENDED else 0.0,
        limit_ends_at=limit_end(states, end, limit, grace_end),
        preempted=grace_end,
        suspended=(number(record.suspend_time) or 0.0) if "SUSPENDED" in states else 0.0,
        allocated=intern((record.tres_alloc_str or "") if nodes else ""),
    )
    return with_output_names(shown)


def preempted(states: frozenset[str], start: float, end: float, since: float) -> float:
    """When Slurm will end a run that it preempts (GraceTime), or 0. ``since``: the preempt time."""
    # The preempt time stays in the record after the job was requeued for it (24.11, measured).
    return end if "RUNNING" in states and since and start <= since <= end else 0.0


def limit_end(states: frozenset[str], end: float, limit: int | None, grace_end: float) -> float:
    """When Slurm ends a run by its time limit, or 0. ``grace_end``: when it ends the run by a
    preemption.
    """
    # Slurm's end of a run without a limit means nothing (22.05: a year after its start). The end of
    # a preempted run is the end of its GraceTime.
    is_by_limit = "RUNNING" in states and limit is not None and not grace_end
    return end if is_by_limit else 0.0


@functools.lru_cache(maxsize=1024)
def partitions(text: str) -> tuple[str, ...]:
    """Names between commas. Cached, because tens of thousands of records have only few lists."""
    return tuple(name for name in text.split(",") if name)


def waiting_tasks(text: str) -> int:
    """The number of tasks in ``array_task_string`` (``0-9,20%4``: 11).

    A text that Slurm has cut short (``...``) counts as far as it goes. Any other text counts as 1.
    """
    count = 0
    for item in _listed_and_limit(text)[0].split(","):
        match = _TASKS.fullmatch(item.strip())
        if match:
            low, high, step = (int(match[i] or 0) for i in (1, 2, 3))
            count += (max(high, low) - low) // max(step, 1) + 1
    return max(count, 1)


def task_list(text: str) -> str:
    """The tasks in ``array_task_string`` (``0-9,20-24:2%4``: ``0-9,20,22,24``) for a command."""
    # Slurm may cut the last number short ("12..."), which would name another task.
    matches = (_TASKS.fullmatch(item.strip()) for item in _listed_and_limit(text)[0].split(","))
    return ",".join(_without_step(match) for match in matches if match)


def _without_step(tasks: re.Match[str]) -> str:
    """The tasks, one by one if they are apart: scontrol refuses ``0-8:2`` (22.05, measured)."""
    low, high, step = (int(tasks[i] or 0) for i in (1, 2, 3))
    return ",".join(map(str, range(low, high + 1, step))) if step > 1 else tasks[0]


def max_running_tasks(text: str) -> int:
    """The limit in ``array_task_string`` (``0-9,20%4``: 4), 0 if it has none."""
    limit = _listed_and_limit(text)[1]
    return int(limit) if limit.isdecimal() else 0


def _listed_and_limit(text: str) -> tuple[str, str]:
    # Slurm writes the limit before or after the closing bracket.
    listed, _, limit = text.replace("[", "").replace("]", "").partition("%")
    return listed, limit


def _whole(value: object, unknown: int) -> int:
    if type(value) is int:
        return value
    parsed = number(value)
    return unknown if parsed is None else int(parsed)


def _signal(value: object) -> int:
    """The signal in an exit code. 22.05 gives wait(2)'s status, data_parser gives a mapping."""
    if isinstance(value, dict):
        signal = value.get("signal")
        signal = signal.get("signal_id", signal.get("id")) if isinstance(signal, dict) else None
        return _whole(signal, 0)
    return _whole(value, 0) & 0x7F


def _code(value: object) -> int:
    if isinstance(value, dict):
        return _whole(value.get("return_code"), 0)
    return _whole(value, 0) >> 8 & 0xFF


def slurmd_timeout(text: str) -> float:
    """SlurmdTimeout (s) in ``scontrol show config``. Slurm's default if it is missing."""
    match = re.search(r"^SlurmdTimeout\s*=\s*(\d+)", text, re.MULTILINE)
    return float(match[1]) if match else SLURMD_TIMEOUT_S


def reservations(text: str) -> tuple[Reservation, ...]:
    """The lines of ``scontrol --oneliner show reservations``. ValueError for another form."""
    reservations = []
    for line in text.splitlines():
        if not line.startswith("ReservationName="):
            continue
        values = dict(_PAIR.findall(line))
        nodes = values.get("Nodes", "")
        reservations.append(
            Reservation(
                name=values["ReservationName"],
                start=unix_time(values.get("StartTime", "")),
                end=unix_time(values.get("EndTime", "")),
                nodes=() if nodes in ("", "(null)") else tuple(expand(nodes)),
                flags=frozenset(values.get("Flags", "").upper().split(",")) - {""},
                # Slurm names cores only if it reserves a part of a node.
                is_partial="CoreIDs=" in line,
                owners=(*_listed(values.get("Users")), *_listed(values.get("Accounts"))),
            )
        )
    return tuple(reservations)


_NO_TEXT = frozenset({"", "(null)"})


def rows_by_job(text: str, mark: str) -> dict[int, str]:
    """The texts by job in ``squeue --format=<mark>%A|...``. ValueError for another text.

    A user's list or account may have line breaks, so without the ``mark`` a part of it could look
    like the row of another user's job.
    """
    before, *rows = text.split(mark)
    if before.strip():
        raise ValueError(f"it begins with {before[:80]!r}")
    parts = (row.removesuffix("\n").partition("|") for row in rows)
    return {int(job): value for job, _, value in parts}


def excluded_nodes(rows: Mapping[int, str]) -> dict[int, tuple[str, ...]]:
    """The nodes by job in rows of ``%x``."""
    return {job: expand_of_user(nodes) for job, nodes in rows.items() if nodes not in _NO_TEXT}


def dependencies(rows: Mapping[int, str]) -> dict[int, str]:
    """What each job depends on in rows of ``%E``."""
    return {job: dependency for job, dependency in rows.items() if dependency not in _NO_TEXT}


def max_times(text: str) -> dict[str, float | None]:
    """MaxTime (s, None: no limit) by partition in ``scontrol --oneliner show partition``.
    ValueError for another form.
    """
    return _partition_times(text, "MaxTime", "UNLIMITED")


def default_times(text: str) -> dict[str, float | None]:
    """DefaultTime (s, None: no limit) of the partitions that set it. ValueError for another
    form.
    """
    return _partition_times(text, "DefaultTime", "NONE")


def _partition_times(text: str, key: str, absent: str) -> dict[str, float | None]:
    times: dict[str, float | None] = {}
    for line in text.splitlines():
        values = dict(_PAIR.findall(line))
        limit = values.get(key, absent)
        if "PartitionName" in values and limit != "NONE":
            times[values["PartitionName"]] = None if limit in _NO_LIMIT else _seconds(limit)
    return times


def free_licenses(text: str) -> dict[str, int]:
    """The free licenses by name in ``scontrol --oneliner show licenses``. ValueError for another
    form.
    """
    rows = (dict(_PAIR.findall(line)) for line in text.splitlines())
    return {row["LicenseName"]: int(row["Free"]) for row in rows if "LicenseName" in row}


def _seconds(text: str) -> float:
    """The seconds of ``[DAYS-]HOURS:MINUTES:SECONDS``."""
    days, _, clock = text.rpartition("-")
    hours, minutes, seconds = (int(field) for field in clock.split(":"))
    return float(((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds)


def partition_states(text: str) -> dict[str, str]:
    """The state by partition in ``scontrol --oneliner show partition``."""
    rows = (dict(_PAIR.findall(line)) for line in text.splitlines())
    return {row["PartitionName"]: row["State"] for row in rows if "PartitionName" in row}


def default_partition(text: str) -> str:
    """The default partition in ``scontrol --oneliner show partition``; "" if there is none."""
    rows = (dict(_PAIR.findall(line)) for line in text.splitlines())
    return next((row["PartitionName"] for row in rows if row.get("Default") == "YES"), "")


_MAIL = re.compile(
    r" MailUser=(\S+) MailType=(\S+)"
    r"(?: (?:NtasksPerTRES|Container|ContainerID|SELinuxContext|ResvPorts)=\S*)*\s*$"
)
"""With the fields that ``scontrol show job`` prints after them for some jobs (job_info.c)."""


def job_mail(text: str, job: int) -> JobMail | None:
    """The mail that the job asks for in ``scontrol --oneliner show job``; None if it asks for no
    mail.
    """
    # Not splitlines: a field of the user's may have any of Python's other line ends.
    records = [line for line in text.split("\n") if line.startswith(f"JobId={job} ")]
    # A user may write anything into the fields before, so the end of the record counts.
    match = _MAIL.search(records[0]) if records else None
    return JobMail(address=match[1], types=frozenset(match[2].split(","))) if match else None


def slurmctld_started(text: str) -> float:
    """BOOT_TIME in ``scontrol show config`` (Unix time). ValueError for another form."""
    match = re.search(r"^BOOT_TIME\s*=\s*(\S+)", text, re.MULTILINE)
    return unix_time(match[1] if match else "")


def suspend_exclusions(text: str) -> SuspendExclusions:
    """The SuspendExc* options in ``scontrol show config``. ValueError for another form."""
    options = dict(re.findall(r"^(SuspendExc\w+)\s*=\s*(.*?)\s*$", text, re.MULTILINE))
    # ``pub[1-4]:2`` keeps any two of these nodes up.
    nodes = re.sub(r":\d+(?=,|$)", "", ",".join(_listed(options.get("SuspendExcNodes"))))
    return SuspendExclusions(
        nodes=tuple(expand(nodes)) if nodes else (),
        partitions=_listed(options.get("SuspendExcParts")),
        states=tuple(state.upper() for state in _listed(options.get("SuspendExcStates"))),
    )


def _listed(text: str | None) -> tuple[str, ...]:
    """The words between commas. Slurm's text for an empty list gives no words."""
    return tuple(item for item in (text or "").split(",") if item not in ("", "(null)"))


def version(text: str) -> tuple[int, int]:
    """``slurm-wlm 22.05.8`` or ``slurm 24.11.5`` as (22, 5). ValueError for any other text."""
    items = text.split()
    numbers = items[-1].split(".") if items else []
    if len(numbers) < 2 or not numbers[0].isdigit() or not numbers[1].isdigit():
        raise ValueError(f"{text!r} does not end in a Slurm version")
    return int(numbers[0]), int(numbers[1])
