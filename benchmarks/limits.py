"""Work of a public history that is lost to time limits, as it was and with saves at the limit.

A job that ended at its limit has lost all it did. The rule that decides when such a job is saved is
the product's own (``policies.checkpoint.threat``); how much more work it had nobody knows, so
that is assumed: as much again as it did, or half, or eight times.
"""

from __future__ import annotations

import argparse
import gzip
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from benchmarks.report import Report, Row, compared, noted, report
from benchmarks.traces import history
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.policies.checkpoint.checkpoint import OnRequest, save_seconds
from slurm_elastic.policies.checkpoint.threat import HORIZON, Response, of_limit

HISTORIES = {
    "DS": "SDSC-DS-2004-2.1-cln",
    "SP2": "SDSC-SP2-1998-4.2-cln",
    "KTH": "KTH-SP2-1996-2.1-cln",
}
GOAL = 0.05
WHOLE = (1.5, 2.0, 9.0)
"""A job's whole work, in its limit; the second is the one with a goal."""
OWN = 3600.0
"""Seconds between the checkpoints that a job writes itself: half of that is lost at a limit."""
COMPLETED = 1
"""SWF's status of a job that has finished, some seconds after its limit even."""
NEAR, SHARE = 90.0, 0.9
"""A job that did not complete and ran to these last seconds of its limit ended for that: on KTH's
machine a job's time began up to a minute before its run.
"""


class Asked(Struct, frozen=True, kw_only=True):
    """A job of a history that ran: ``run`` and ``limit`` in seconds; ``cut``: it ended for that."""

    run: float
    limit: float
    procs: int
    cut: bool


class Saves(Struct, frozen=True, kw_only=True):
    """Seconds that a save and a restart take, both without work; what a first save is taken to
    need, what is kept before the limit, and how often a limit is renewed. The defaults are the
    product's.
    """

    save: float = 60.0
    restart: float = 60.0
    expected: float = 60.0
    slack: float = 5.0
    times: int = OnRequest().times


class Lost(Struct, frozen=True, kw_only=True):
    """Seconds of a job's time on its machines in which it did nothing that it still has; whether it
    ``finished``, after so many ``renewals``.
    """

    seconds: float
    finished: bool
    renewals: int


def main(arguments: Sequence[str]) -> Report:
    parser = argparse.ArgumentParser(prog="scripts/bench limits")
    parser.add_argument("--save", type=float, default=60.0, metavar="SECONDS", help="a save takes")
    parser.add_argument("--restart", type=float, default=60.0, metavar="SECONDS")
    parser.add_argument("--times", type=int, default=OnRequest().times, help="renewals at most")
    options = parser.parse_args(arguments)
    saves = Saves(save=options.save, restart=options.restart, times=options.times)
    rows: list[Row] = []
    for name, file in HISTORIES.items():
        path = history(file)
        if path is not None:
            rows += _rows(name, list(asked(path)), saves)
    return report("limits", rows)


def asked(path: Path) -> Iterator[Asked]:
    """The jobs that ran and had a limit. Not by ``simulate.swf``: to the simulator a job that ran
    longer than it had asked for was let, and its limit is what it ran.
    """
    with gzip.open(path, "rt", errors="replace") as lines:
        for line in lines:
            words = line.split()
            if len(words) < 11 or words[0].startswith(";"):
                continue
            run, limit, status = float(words[3]), float(words[8]), int(words[10])
            procs = int(words[4]) if int(words[4]) > 0 else int(words[7])
            if run >= 0 and limit > 0 and procs > 0:
                late = run >= max(limit - NEAR, SHARE * limit)
                cut = late and status != COMPLETED
                yield Asked(run=run, limit=limit, procs=procs, cut=cut)


def replay(limit: float, work: float, saves: Saves) -> Lost:
    """The loss of a job of so much work (s) to its time limit, and to its saves for that."""
    left, spent, took = work, 0.0, saves.expected
    job = SlurmJob(id=1, states=frozenset({"RUNNING"}), start=1.0, limit=int(limit))
    for renewed in range(saves.times + 1):
        begins = saves.restart if renewed else 0.0
        near = max(job.start, job.start + limit - max(HORIZON, 3 * took))
        threat = of_limit(job, took, saves.times, renewed, near)
        renews = threat is not None and threat.answer is Response.MOVE
        at = threat.answer_at(job, took, saves.slack) - job.start if threat and renews else limit
        if begins + left <= at:
            return Lost(seconds=spent + begins, finished=True, renewals=renewed)
        if not renews or at + saves.save + saves.slack > limit or at <= begins:
            break
        left -= at - begins
        spent += begins + saves.save
        took = save_seconds((saves.save,), saves.expected)
    if begins + left <= limit:
        return Lost(seconds=spent + begins, finished=True, renewals=renewed)
    return Lost(seconds=spent + work - left + limit, finished=False, renewals=renewed)


def _rows(name: str, jobs: Sequence[Asked], saves: Saves) -> list[Row]:
    cut = [job for job in jobs if job.cut]
    today = sum(job.limit * job.procs for job in cut) / 3600
    whole = sum(job.run * job.procs for job in jobs) / 3600
    rows = [
        noted(f"{name}: jobs that end at a limit", len(cut) / len(jobs), "share"),
        noted(f"{name}: hours lost today", today / whole, "share"),
    ]
    for times in WHOLE:
        lost, unfinished = _with_saves(jobs, times, saves)
        case = f"{name}, work of {times:g} limits"
        goal = GOAL if times == WHOLE[1] else None
        rows.append(compared(f"{case}: lost", lost, today, "processor h", at_most=goal))
        rows.append(noted(f"{case}: not finished", unfinished / max(len(cut), 1), "share"))
        if goal is not None:
            own = sum(min(OWN, job.limit) / 2 * job.procs for job in cut) / 3600
            rows.append(compared(f"{case}: lost / own hourly saves", lost, own, "processor h"))
    return rows


def _with_saves(jobs: Sequence[Asked], times: float, saves: Saves) -> tuple[float, int]:
    """Processor hours that all jobs lose, those that would have ended in time too, if every one is
    saved at its limit; how many do not finish.
    """
    lost, unfinished = 0.0, 0
    for job in jobs:
        work = times * job.limit if job.cut else min(job.run, job.limit)
        found = replay(job.limit, work, saves)
        lost += found.seconds * job.procs / 3600
        unfinished += not found.finished
    return lost, unfinished
