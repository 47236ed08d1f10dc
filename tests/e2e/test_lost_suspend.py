"""A suspend request that is lost, on real Slurm: the node's next job does not wait for the machine
that nobody ended. Slurm runs SuspendProgram once, and slurmctld takes no slurmd that booted before
it asked for one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from slurm_elastic.policies.nodes.node_state import Phase, phase
from slurm_elastic.sandbox.cluster import Sandbox
from tests.e2e.crash import FULL
from tests.e2e.world import Until, back_to_zero, ledger, live_machines, machines, running_nodes

pytestmark = [pytest.mark.e2e, pytest.mark.release]
RESUME_TIMEOUT = 400.0
"""Seconds, and as many of grace: only the resume request itself can be what helps the job."""


@pytest.fixture(scope="module")
def site(sandbox: Callable[..., Sandbox]) -> Sandbox:
    return sandbox(
        static_nodes=1,
        drop=("onprem",),
        suspend_time=5.0,
        suspend_timeout=5.0,
        resume_timeout=RESUME_TIMEOUT,
        elastic={"timings": {"orphan_timeout": RESUME_TIMEOUT}},
    )


@contextmanager
def no_room_for_requests(site: Sandbox) -> Iterator[None]:
    """The programs cannot write their requests, as on a full disk."""
    requests = site.layout.dir / "state" / "requests"
    away = requests.rename(requests.with_name("requests.away"))
    try:
        yield
    finally:
        away.rename(requests)


def refused(site: Sandbox, node: str) -> bool:
    """Whether SuspendProgram has said that it could not keep the request for the node."""
    log = site.layout.dir / "state" / "programs.log"
    lines = log.read_text().splitlines() if log.exists() else []
    return any("slurm-elastic-suspend: " in line and node in line for line in lines)


def is_off(site: Sandbox, node: str) -> bool:
    return phase(site.nodes()[node]) is Phase.POWERED_DOWN


def test_the_next_job_of_the_node_gets_a_new_machine_at_once(site: Sandbox) -> None:
    until = Until(site)
    first = site.submit(until.script, FULL, "--partition=aws")
    (node,) = running_nodes(site, [first])[first]
    site.wait_for(lambda: all(m.registered_at for m in machines(site)), 60, "it is known to be up")
    (old,) = live_machines(site)
    with no_room_for_requests(site):
        until.go()
        site.wait_job(first)
        site.wait_for(lambda: refused(site, node), 120, "SuspendProgram fails")
    site.wait_for(lambda: is_off(site, node), 120, "slurmctld has it powered down")
    assert [m.id for m in live_machines(site)] == [old.id], "nobody was told to end it"

    until = Until(site)
    again = site.submit(until.script, FULL, "--partition=aws", f"--nodelist={node}")
    assert running_nodes(site, [again])[again] == [node]
    (new,) = live_machines(site)
    assert (new.node, new.id != old.id) == (node, True)
    until.go()
    fields = site.wait_job(again)
    assert (fields["Restarts"], fields["NodeList"]) == ("0", node)
    book = ledger(site)
    try:
        ended = [str(d.reason) for d in book.decisions.about(node) if d.kind == "terminated"]
    finally:
        book.close()
    assert "waits for a machine that boots after that" in ended[0]
    back_to_zero(site)
