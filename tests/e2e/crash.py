"""Killing the daemon between two steps, and what must hold afterwards.

After each: no orphan, no double instance, no lost job.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from slurm_elastic.base.faults import POINTS
from slurm_elastic.machine.local.records import read_records
from slurm_elastic.machine.local.wire import MachineRecord
from slurm_elastic.model.cluster import InstanceState
from slurm_elastic.sandbox.cluster import Sandbox
from tests.e2e.world import Until, back_to_zero, live_ec2, queued, submit_many

FULL = "--cpus-per-task=2"


def steps(phase: str, first: tuple[str, str]) -> list[Any]:
    """Each point of a phase in each partition, as a test's parameters: the ``first`` in the first
    tier, the others in the release tier. In memory all of them are in the first (tests/chaos).
    """
    points = [point for point in POINTS if point.startswith(f"{phase}.")]
    assert first[0] in points
    both = [(point, partition) for point in points for partition in ("aws", "onprem")]
    return [pytest.param(*one, marks=() if one == first else pytest.mark.release) for one in both]


def arm(site: Sandbox, point: str) -> str:
    """Restart the daemon so that it dies once at ``point``; the file that says it did."""
    once = str(site.layout.dir / "state" / f"died-{point}")
    site.daemon_stop()
    site.daemon_start({"SLURM_ELASTIC_FAULT": point, "SLURM_ELASTIC_FAULT_ONCE": once})
    return once


def assert_one_machine_a_node(site: Sandbox) -> None:
    """No two machines alive, whichever cloud they are in, serve the same node."""
    alive = [r.node for r in local_records(site) if r.state != InstanceState.TERMINATED]
    assert not [n for n, count in Counter(live_ec2(site) + alive).items() if count > 1]


def machines_made(site: Sandbox) -> set[str]:
    """By id, those that have ended included: EC2's and the local agent's."""
    return {m.id for m in site.ec2.state().machines} | {r.id for r in local_records(site)}


def local_records(site: Sandbox) -> Sequence[MachineRecord]:
    """The machines by the agent's own files, whatever the daemon believes."""
    return read_records(site.layout.local_machines)


def node_of(site: Sandbox, number: int) -> tuple[str, ...]:
    """The job's, also while it boots."""
    job = queued(site, number)
    return tuple(job.nodes) if job else ()


def die_and_repair(site: Sandbox, point: str, partition: str) -> None:
    """Two jobs during which the daemon dies at ``point`` and is started again."""
    before = machines_made(site)
    once, until = arm(site, point), Until(site)
    jobs = submit_many(site, 2, until.script, FULL, f"--partition={partition}")
    # Not before: the machine of one that has ended would do for the other one.
    site.wait_for(lambda: all(node_of(site, job) for job in jobs), 60, "each has a node")
    until.go()
    site.wait_for(lambda: os.path.exists(once), 90, f"the daemon dies at {point}")
    assert_one_machine_a_node(site)
    site.wait_for(lambda: not site.status()["slurm-elasticd"], 10, "the daemon is dead")
    site.daemon_start()
    for job in jobs:
        assert site.wait_job(job)["Restarts"] == "0"
    assert_one_machine_a_node(site)
    back_to_zero(site)
    assert len(machines_made(site) - before) == 2, "no machine was launched in vain"
    os.unlink(once)
