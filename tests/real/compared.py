"""Whether the Slurm in memory does what slurmctld does: each command goes to both, from the same state.

Before a command the fake gets the nodes and jobs that Slurm shows; after it, both are asked again, and
the jobs and nodes of the command are compared field by field.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from slurm_elastic.base.errors import SlurmError
from slurm_elastic.model.slurm import SlurmJob, SlurmNode
from slurm_elastic.slurm.client.cli import SlurmCli
from slurm_elastic.slurm.client.fake_timed import TimedSlurm

OF_JOBS = (
    "requeue", "start_now", "change_pending", "set_requeue", "any_nodes", "hold", "release",
    "suspend", "resume", "exclude_nodes",
)  # fmt: skip
OF_NODES = ("update_nodes", "set_weights", "set_addresses")
SHARE = 0.6
"""The share of the commands that are compared: two more queries go before and after each."""
NEAR_S = 5.0
"""Two times (s) that are no further apart are the same."""
TIMES = {"start", "eligible", "submit", "end", "limit_ends_at", "preempted", "suspended",
         "last_busy", "boot_time", "reason_at"}  # fmt: skip


class Shown(NamedTuple):
    """What Slurm shows at one moment."""

    jobs: Mapping[int, SlurmJob]
    nodes: Mapping[str, SlurmNode]
    at: float


def shown(slurm: SlurmCli) -> Shown:
    jobs = {job.id: job for job in slurm._all_jobs()}
    return Shown(jobs, slurm.nodes(), time.time())


def fake_of(state: Shown, version: tuple[int, int]) -> TimedSlurm:
    """The Slurm in memory with these nodes and jobs."""
    fake = TimedSlurm((), time.time, lambda *_: None)
    fake._version = version
    fake._nodes.update(state.nodes)
    fake._jobs.update(state.jobs)
    fake._since.update(dict.fromkeys(state.nodes, state.at))
    return fake


def have_compared(directory: Path, name: str) -> None:
    """From now on commands of this process write what differs to a file of that name."""
    chance, path = random.Random(name), directory / name

    def noted(lines: Sequence[str]) -> None:
        with path.open("a") as file:
            file.writelines(f"{line}\n" for line in lines)

    for command in (*OF_JOBS, *OF_NODES):
        setattr(SlurmCli, command, _compared(command, getattr(SlurmCli, command), chance, noted))


def _compared(
    command: str, real: Callable[..., Any], chance: random.Random,
    noted: Callable[[Sequence[str]], None],
) -> Callable[..., Any]:  # fmt: skip
    def both(slurm: SlurmCli, *of: Any, **more: Any) -> Any:
        if chance.random() > SHARE:
            return real(slurm, *of, **more)
        try:
            before = shown(slurm)
        except SlurmError:
            return real(slurm, *of, **more)
        error: SlurmError | None = None
        answer = None
        try:
            answer = real(slurm, *of, **more)
        except SlurmError as caught:
            error = caught
        if error is None or not error.unanswered:
            _note(slurm, (command, of, more), before, error, noted)
        if error is not None:
            raise error
        return answer

    return both


def _note(
    slurm: SlurmCli, asked: tuple[str, Sequence[Any], Mapping[str, Any]], before: Shown,
    error: SlurmError | None, noted: Callable[[Sequence[str]], None],
) -> None:  # fmt: skip
    try:
        after = shown(slurm)
        noted([*differences(asked, before, after, error, slurm.version())])
    except SlurmError:
        return


def differences(
    asked: tuple[str, Sequence[Any], Mapping[str, Any]], before: Shown, after: Shown,
    error: SlurmError | None, version: tuple[int, int],
) -> Iterator[str]:  # fmt: skip
    """What the fake makes of the command, and Slurm does not."""
    command, of, more = asked
    fake = fake_of(before, version)
    refusal: SlurmError | None = None
    try:
        getattr(fake, command)(*of, **more)
    except SlurmError as caught:
        refusal = caught
    yield "compared"
    words = f"{command}{_words(command, of, more)}"
    for name in _names(command, of):
        was = before.jobs.get(name) if command in OF_JOBS else before.nodes.get(name)
        shape = f"{words} of {_shape(was)}"
        if (error is None) != (refusal is None):
            yield f"{shape}: Slurm {_said(error)}, the fake {_said(refusal)}"
            continue
        theirs = after.jobs.get(name) if command in OF_JOBS else after.nodes.get(name)
        ours = fake._jobs.get(name) if command in OF_JOBS else fake._nodes.get(name)
        if was is not None and theirs is not None:
            yield from (f"{shape}: {d}" for d in fields(theirs, ours, after.at))


def fields(theirs: Any, ours: Any, now: float, names: Sequence[str] = ()) -> Iterator[str]:
    """The fields that differ, as Slurm and the fake have them."""
    if ours is None:
        yield "the fake has none"
        return
    for name in names or theirs.__struct_fields__:
        real, made = getattr(theirs, name), getattr(ours, name)
        if name in TIMES and abs(real - made) <= NEAR_S:
            continue
        if name == "priority" and bool(real) == bool(made):
            continue  # Slurm computes it
        if real != made:
            yield f"{name}: Slurm {_value(name, real, now)}, the fake {_value(name, made, now)}"


def _names(command: str, of: Sequence[Any]) -> Sequence[Any]:
    first = of[0]
    if command in ("requeue", "start_now", "set_requeue", "any_nodes", "hold", "release", "suspend",
                   "resume", "exclude_nodes"):  # fmt: skip
        return (first,)
    return tuple(first)


def _words(command: str, of: Sequence[Any], more: Mapping[str, Any]) -> str:
    if command == "update_nodes":
        return f" {more.get('state') or ''}{' reason' if more.get('reason') else ''}".rstrip()
    if command == "change_pending":
        return " partitions" if more.get("partitions") else " begin"
    return ""


def _shape(was: Any) -> str:
    if was is None:
        return "what is not there"
    reason = f" {was.reason}" if isinstance(was, SlurmJob) and was.reason else ""
    return f"{' '.join(sorted(was.states))}{reason}"


def _said(error: SlurmError | None) -> str:
    return "does it" if error is None else f"refuses it ({error.stderr.splitlines()[-1][:80]})"


def _value(name: str, value: Any, now: float) -> str:
    if name in TIMES:
        return f"{round((value - now) / 10) * 10:+d} s" if value else "0"
    if isinstance(value, frozenset):
        return " ".join(sorted(value))
    return repr(value)[:60]
