"""slurmctld restarted, programs run twice, answers and the ledger lost: on real Slurm.

After each: no orphan, no double instance, no lost job.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable

import pytest

from slurm_elastic.sandbox.cluster import Sandbox
from slurm_elastic.sandbox.ec2.faults import Fault, FaultKind
from tests.e2e.crash import FULL, machines_made
from tests.e2e.world import (
    Until,
    back_to_zero,
    ledger,
    live_ec2,
    live_machines,
    machines,
    queued,
    running_nodes,
    submit_many,
)

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def site(sandbox: Callable[..., Sandbox]) -> Sandbox:
    return sandbox(static_nodes=1, suspend_time=5.0, suspend_timeout=5.0)


@pytest.mark.release
def test_a_program_run_twice_launches_nothing_twice(site: Sandbox) -> None:
    before, until = machines_made(site), Until(site)
    jobs = submit_many(site, 2, until.script, FULL, "--partition=aws")
    nodes = running_nodes(site, jobs)
    names = [n for some in nodes.values() for n in some]
    again = [str(site.layout.dir / "programs" / "slurm-elastic-resume"), ",".join(names)]
    for _ in range(2):
        # As SlurmUser, as slurmctld does: nobody else's request can be read by the daemon.
        subprocess.run(again, env={}, check=True, user="slurm", group="slurm", extra_groups=())
    site.wait_for(lambda: dropped(site, names[0]) >= 2, 30, "the daemon drops them")
    assert len(machines_made(site) - before) == 2
    until.go()
    for job in jobs:
        site.wait_job(job)
    back_to_zero(site)


@pytest.mark.release
def test_a_program_run_twice_at_once_launches_nothing_twice(site: Sandbox) -> None:
    """Both requests are of nodes that are powering up: the second meets the first one's intent."""
    site.daemon_stop()
    before = machines_made(site)
    jobs = submit_many(site, 2, "sleep 2", FULL, "--partition=aws")
    spool = site.layout.dir / "state" / "requests"
    # One for both of them, or a second one by now.
    first, *_ = site.wait_for(lambda: list(spool.glob("*-resume.json")), 30, "the request is there")
    (spool / f"{first.stem.removesuffix('-resume')}1-resume.json").write_bytes(first.read_bytes())
    os.chmod(spool / f"{first.stem.removesuffix('-resume')}1-resume.json", 0o644)
    site.daemon_start()
    for job in jobs:
        site.wait_job(job)
    assert len(machines_made(site) - before) == 2
    back_to_zero(site)


def test_slurmctld_restarted_in_the_middle_of_a_burst(site: Sandbox) -> None:
    before, until = machines_made(site), Until(site)
    jobs = submit_many(site, 3, until.script, FULL, "--partition=aws")
    site.wait_for(lambda: len(live_ec2(site)) == 3, 60, "the machines are launched")
    site.slurmctld_stop()
    site.slurmctld_start()
    until.go()
    for job in jobs:
        assert site.wait_job(job)["Restarts"] == "0"
    back_to_zero(site)
    assert len(machines_made(site) - before) == 3


@pytest.mark.release
@pytest.mark.parametrize(
    "kind", [FaultKind.RESET_AFTER, FaultKind.RESET_BEFORE, FaultKind.THROTTLE]
)
def test_a_lost_answer_is_asked_for_again_under_the_same_token(
    site: Sandbox, kind: FaultKind
) -> None:
    before = machines_made(site)
    site.ec2.fail(Fault(kind=kind, action="RunInstances", count=3))
    (job,) = submit_many(site, 1, "true", FULL, "--partition=aws")
    site.wait_job(job)
    assert len(machines_made(site) - before) == 1
    back_to_zero(site)
    site.ec2.heal()


@pytest.mark.release
def test_a_fresh_machine_that_describe_does_not_show_is_not_lost(site: Sandbox) -> None:
    before = machines_made(site)
    site.ec2.hide_fresh(20.0)
    (job,) = submit_many(site, 1, "sleep 25", FULL, "--partition=aws")
    site.wait_job(job)
    assert len(machines_made(site) - before) == 1
    site.ec2.hide_fresh(0.0)
    back_to_zero(site)


def test_a_lost_ledger_is_learnt_anew_from_the_tags_and_nothing_is_deleted(site: Sandbox) -> None:
    until = Until(site)
    jobs = submit_many(site, 2, until.script, FULL, "--partition=aws")
    running_nodes(site, jobs)
    alive = sorted(live_ec2(site))
    site.daemon_stop()
    state = site.layout.dir / "state"
    for file in (*state.glob("ledger.db*"), *state.glob("journal/ledger[-.]*")):
        file.unlink()
    site.daemon_start()
    site.wait_for(
        lambda: sorted(m.instance.node for m in machines(site)) == alive, 30, "both are adopted"
    )
    until.go()
    for job in jobs:
        assert site.wait_job(job)["Restarts"] == "0"
    back_to_zero(site)


@pytest.mark.release
def test_a_machine_that_dies_gives_its_job_back_at_once(site: Sandbox) -> None:
    until = Until(site)
    (job,) = submit_many(site, 1, until.script, FULL, "--partition=aws")
    running_nodes(site, [job])
    (victim,) = [m.id for m in live_machines(site)]
    site.ec2.interrupt([victim], notice=0.0)
    site.wait_for(lambda: (j := queued(site, job)) and j.restarts == 1, 120, "it is requeued")
    until.go()
    site.wait_job(job, timeout=240)
    back_to_zero(site)


def dropped(site: Sandbox, node: str) -> int:
    book = ledger(site)
    try:
        return sum(d.kind == "dropped" for d in book.decisions.about(node))
    finally:
        book.close()
