"""What must hold when one of two heads dies while jobs run, wherever what they share lies."""

from __future__ import annotations

import contextlib
import re
import time
from typing import Any

from e2e.crash import FULL, assert_one_machine_a_node, machines_made
from e2e.heads import HEADS, Pair
from e2e.world import Until, back_to_zero, running_nodes

from slurm_elastic.model.causes.machine_ends import PoweredUpAgain
from slurm_elastic.sandbox.daemons import ELASTICD

OLD = 30.0
"""Seconds after which Slurm forgets no allocation in a takeover."""
GIVEN = re.compile("(?:sched: Allocate|Started) JobId=")
ANEW = re.compile(f"repair relaunch .*{re.escape(PoweredUpAgain().words)}")


def jobs_go_on(pair: Pair) -> None:
    """A job that runs goes on at the other head, another one starts there, an order stands."""
    site, until = pair.sandbox, Until(pair.sandbox)
    first, other = HEADS
    pair.given_back()
    before = bought(site)
    job = site.submit(until.script, FULL, "--partition=aws")
    running_nodes(site, [job])
    kept(site, job)
    pair.run(first, "pause", "onprem", "--reason", "of the first head")
    pair.strike(first)
    site.wait_for(lambda: pair.acting() == other, 90.0, f"{other} acts")
    assert site.job(job)["JobState"] in ("RUNNING", "CONFIGURING"), "until its node has answered"
    assert "of the first head" in pair.run(other, "status")
    more = site.submit("true", FULL, "--partition=aws")
    until.go()
    for one in (job, more):
        done = site.wait_job(one)
        assert (done["JobState"], done["Restarts"]) == ("COMPLETED", "0")
    assert_one_machine_a_node(site)
    assert pair.run(other, "resume", "onprem")
    pair.given_back()
    back_to_zero(site)
    assert_no_more_than_asked(site, before)


def bought(site: Any) -> tuple[set[str], int]:
    """The machines until now, and how often Slurm has asked for one, by the logs of both heads: it
    gave a job its node, or forgot in a takeover that a node had registered.
    """
    text = (site.layout.log / "slurmctld.log").read_text(errors="replace")
    asked = len(GIVEN.findall(text))
    for log in site.layout.log.glob(f"*-{ELASTICD}.out"):
        asked += len(ANEW.findall(log.read_text(errors="replace")))
    return machines_made(site), asked


def assert_no_more_than_asked(site: Any, before: tuple[set[str], int]) -> None:
    """One machine at most for each time that Slurm has asked since: a job that it forgot in a
    takeover may get another node the next time. A head that is given control before the other
    one has saved ("Old state possible" in slurmctld's log) may still wait for a node that is up:
    slurmctld accepts no slurmd that booted before it began to wait.
    """
    (machines, asked), (these, then) = bought(site), before
    assert len(machines - these) <= asked - then


def kept(site: Any, job: int) -> None:
    """Wait until the job is old enough, and slurmctld has written down since that it runs: a busy
    machine does that late.
    """
    site.wait_for(lambda: site.job(job)["RunTime"] >= "00:00:30", 2 * OLD, "the job is old")
    now, state = time.time(), site.layout.dir / "slurmctld" / "job_state"
    site.submit("true", "--hold", "--job-name=written")

    def is_written() -> bool:
        # For a moment it is away: slurmctld removes it before it has the next one in its place.
        with contextlib.suppress(FileNotFoundError):
            return state.stat().st_mtime > now
        return False

    site.wait_for(is_written, 2 * OLD, "Slurm has it on its disk")
    site.run(["scancel", "--name=written"])
