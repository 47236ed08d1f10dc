"""A pool that keeps stopped machines, on real Slurm: the next job starts the one of the last."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from slurm_elastic.sandbox.cluster import Sandbox
from slurm_elastic.sandbox.ec2.cloud import MachineView
from slurm_elastic.sandbox.ec2.faults import Fault, FaultKind
from tests.e2e.world import PATIENCE, ledger, live_machines

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def site(sandbox: Callable[..., Sandbox]) -> Sandbox:
    pool = {"name": "pub", "nodes": "pub[1-3]", "markets": ["on-demand"]}
    kept = {"max_stopped": 1, "stopped_price": 0.001}
    return sandbox(static_nodes=1, drop=("onprem",), elastic={"pools": [pool | kept]})


def run(site: Sandbox) -> None:
    fields = site.wait_job(site.submit("hostname", "--partition=aws", "--nodelist=pub1"))
    assert fields["JobState"] == "COMPLETED"


def stopped(site: Sandbox) -> MachineView:
    """The one machine that there is, once it is stopped."""

    def look() -> MachineView | None:
        there = live_machines(site)
        return there[0] if [m.state for m in there] == ["stopped"] and booked(site) else None

    found = site.wait_for(look, PATIENCE, "the idle machine is stopped")
    assert found is not None
    return found


def booked(site: Sandbox) -> list[str]:
    book = ledger(site)
    try:
        return [m.instance.id for m in book.stops.machines()]
    finally:
        book.close()


def kinds(site: Sandbox) -> list[str]:
    book = ledger(site)
    try:
        return [d.kind for d in book.decisions.about("pub1")]
    finally:
        book.close()


@pytest.fixture(scope="module")
def first(site: Sandbox) -> MachineView:
    """The machine of the first job, which is stopped now."""
    run(site)
    found = stopped(site)
    assert booked(site) == [found.id]
    return found


def test_the_second_job_starts_the_machine_of_the_first(site: Sandbox, first: MachineView) -> None:
    run(site)
    again = stopped(site)
    assert again.id == first.id
    told = kinds(site)
    assert told.count("launched") == 1
    assert (told.count("stopped"), told.count("started")) == (2, 1)


@pytest.mark.release
@pytest.mark.usefixtures("first")
def test_a_refused_start_gives_the_job_a_fresh_machine(site: Sandbox) -> None:
    old = stopped(site)
    site.ec2.fail(Fault(kind=FaultKind.CAPACITY, action="StartInstances", count=1))
    run(site)
    new = stopped(site)
    assert new.id != old.id
    assert "start-refused" in kinds(site)
    states = {m.id: m.state for m in site.ec2.state().machines}
    assert states[old.id] == "terminated"
