"""Slurm's JSON answers to our values, over releases 22.05 to 26.05. Pure.

Measured on 22.05, 24.11 and 26.05. 22.05 (openapi v0.0.38) gives plain numbers and one state word;
data_parser, there from 23.02 on, gives numbers as ``{set, infinite, number}`` and states as lists
(those of jobs from 23.11 on). Either form is read from any release. An element that lacks what it
must have raises KeyError, one of another form TypeError, ValueError or AttributeError.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Any

from slurm_elastic.hostlist import expand
from slurm_elastic.model_slurm import SlurmJob, SlurmNode

JsonObject = Mapping[str, Any]

_GRES = ("tres_per_node", "tres_per_job", "tres_per_socket", "tres_per_task")
SLURMD_TIMEOUT = 300.0
"""Slurm's default (s): slurm.conf(5)."""
_TASKS = re.compile(r"(\d{1,9})(?:-(\d{1,9})(?::(\d{1,9}))?)?", re.ASCII)


def number(value: object) -> float | None:
    """A number in any of the forms Slurm has for one; None where it is unset or infinite."""
    if type(value) is int:  # most are, of tens of thousands of records
        return float(value)
    if isinstance(value, Mapping):
        if not value.get("set", True) or value.get("infinite", False):
            return None
        value = value.get("number")
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value)


def states(*values: object) -> frozenset[str]:
    """State words of a string, a list or several of them, upper case."""
    words: list[str] = []
    for value in values:
        words += map(str, filter(None, value if isinstance(value, list) else [value]))
    return _states(tuple(words))


@functools.lru_cache(maxsize=1024)
def _states(words: tuple[str, ...]) -> frozenset[str]:
    """Few of them are in tens of thousands of records."""
    return frozenset(word.upper() for word in words)


def errors(raw: JsonObject) -> str:
    """What an answer's ``errors`` say; empty where it has none. 22.05 with slurmctld stopped or
    hanging gives them beside an empty list, and exits 0 (measured): such a list says nothing.
    """
    told = raw.get("errors") or ()
    return "; ".join(dict.fromkeys(_words(one) for one in told))


def _words(error: object) -> str:
    if not isinstance(error, Mapping):
        return str(error)
    parts = [str(error[key]) for key in ("source", "description", "error") if error.get(key)]
    code = error.get("error_number", error.get("errno"))
    return ": ".join(parts or ["an error without words"]) + (f" ({code})" if code else "")


def node(raw: JsonObject) -> SlurmNode:
    """One element of ``nodes`` of ``sinfo --json`` (22.05) or ``scontrol show nodes --json``."""
    return SlurmNode(
        name=raw["name"],
        states=states(raw.get("state"), raw.get("state_flags")),
        reason=raw.get("reason") or "",
        reason_user=raw.get("reason_set_by_user") or "",
        partitions=tuple(raw.get("partitions") or ()),
        address=raw.get("address") or "",
        port=_whole(raw.get("port"), 0),
        cpus=int(number(raw.get("cpus")) or 0),
        memory=int(number(raw.get("real_memory")) or 0),
        last_busy=number(raw.get("last_busy")) or 0.0,
        boot_time=number(raw.get("boot_time")) or 0.0,
        weight=_whole(raw.get("weight"), 0),
        comment=raw.get("comment") or "",
    )


def job(raw: JsonObject) -> SlurmJob:
    """One element of ``jobs`` of ``squeue --json``."""
    nodes = raw.get("nodes") or ""
    task, minutes = number(raw.get("array_task_id")), number(raw.get("time_limit"))
    required = raw.get("required_nodes") or ""
    return SlurmJob(
        id=int(raw["job_id"]),
        states=states(raw.get("job_state")),
        user=raw.get("user_name") or str(raw.get("user_id", "")),
        account=raw.get("account") or "",
        partitions=tuple((raw.get("partition") or "").split(",")),
        nodes=tuple(expand(nodes)) if nodes else (),
        reason=raw.get("state_reason") or "",
        start=number(raw.get("start_time")) or 0.0,
        submit=number(raw.get("submit_time")) or 0.0,
        requeue=bool(raw.get("requeue", True)),
        restarts=int(number(raw.get("restart_cnt")) or 0),
        name=raw.get("name") or "",
        uid=_whole(raw.get("user_id"), -1),
        gid=_whole(raw.get("group_id"), -1),
        array=_whole(raw.get("array_job_id"), 0),
        task=None if task is None else int(task),
        batch=bool(raw.get("batch_flag", True)),
        comment=raw.get("comment") or "",
        required=tuple(expand(required)) if required else (),
        directory=raw.get("current_working_directory") or "",
        output=raw.get("standard_output") or "",
        killed_by=_signal(raw.get("exit_code")),
        exit_code=_code(raw.get("exit_code")),
        tasks=array_tasks(raw.get("array_task_string") or ""),
        node_count=max(_whole(raw.get("node_count"), 1), 1),
        cpus=max(_whole(raw.get("cpus"), 1), 1),
        limit=None if minutes is None else int(minutes) * 60,
        priority=_whole(raw.get("priority"), 0),
        gres=" ".join(str(raw[key]) for key in _GRES if raw.get(key)),
        features=raw.get("features") or "",
        eligible=number(raw.get("eligible_time")) or 0.0,
        description=raw.get("state_description") or "",
    )


def array_tasks(text: str) -> int:
    """How many tasks ``array_task_string`` names (``0-9,20%4``: 4, as no more may run at a time).

    One that Slurm has cut short (``...``) counts as far as it goes; a text of another form is one.
    """
    listed, _, most = text.partition("%")
    count = 0
    for part in listed.strip("[]").split(","):
        match = _TASKS.fullmatch(part.strip())
        if match:
            first, last, step = (int(match[i] or 0) for i in (1, 2, 3))
            count += (max(last, first) - first) // max(step, 1) + 1
    return max(min(count, int(most)) if most.isdigit() else count, 1)


def _whole(value: object, unknown: int) -> int:
    read = number(value)
    return unknown if read is None else int(read)


def _signal(value: object) -> int:
    """The signal in an exit code: 22.05 gives wait(2)'s status, data_parser a mapping."""
    if isinstance(value, Mapping):
        killed = value.get("signal")
        killed = killed.get("signal_id", killed.get("id")) if isinstance(killed, Mapping) else None
        return _whole(killed, 0)
    return _whole(value, 0) & 0x7F


def _code(value: object) -> int:
    if isinstance(value, Mapping):
        return _whole(value.get("return_code"), 0)
    return _whole(value, 0) >> 8 & 0xFF


def slurmd_timeout(text: str) -> float:
    """SlurmdTimeout (s) in ``scontrol show config``; Slurm's default where it is not told."""
    found = re.search(r"^SlurmdTimeout\s*=\s*(\d+)", text, re.MULTILINE)
    return float(found[1]) if found else SLURMD_TIMEOUT


def version(text: str) -> tuple[int, int]:
    """``slurm-wlm 22.05.8`` or ``slurm 24.11.5`` to (22, 5); ValueError for anything else."""
    words = text.split()
    parts = words[-1].split(".") if words else []
    if len(parts) < 2 or not parts[0].isdigit() or not parts[1].isdigit():
        raise ValueError(f"{text!r} does not end in a Slurm version")
    return int(parts[0]), int(parts[1])
