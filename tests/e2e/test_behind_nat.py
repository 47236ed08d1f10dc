"""Machines behind one router, without a tunnel: Slurm shows them idle, all at the router's address,
and ``doctor`` says so. Real slurmctld and slurmd's on hosts of namespaces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from slurm_elastic.model.finding import FindingLevel
from slurm_elastic.sandbox.cluster import Sandbox
from tests import netns
from tests.e2e.lab_site import PATIENCE, Site, no_sshd, site_on
from tests.netns import NAT, Lab

pytestmark = [pytest.mark.e2e, pytest.mark.release]


@pytest.fixture(scope="module")
def site(sandbox: Callable[..., Sandbox]) -> Iterator[Site]:
    if reason := netns.why_not() or no_sshd():
        pytest.skip(reason)
    lab = Lab(machines=2)
    with lab.up(), site_on(lab, sandbox, None) as there:
        yield there


def test_doctor_names_nodes_at_an_address_that_is_not_their_machines(site: Site) -> None:
    site.switched_on("pub1")
    site.sandbox.wait_for(lambda: site.is_idle("pub1"), PATIENCE, "it is idle, as Slurm has it")
    (machine,) = site.machines.powered()
    (one,) = site.doctor()["NodeAddr"]
    assert one.level is FindingLevel.NOTE
    assert one.observed == f"Slurm has pub1 at {NAT}, its machine is {machine.address}"
    site.switched_on("pub2")
    site.sandbox.wait_for(lambda: site.is_idle("pub2"), PATIENCE, "both are idle")
    (both,) = site.doctor()["NodeAddr"]
    assert (both.level, both.observed) == (FindingLevel.WRONG, f"Slurm has pub[1-2] all at {NAT}")
    assert "join.network opens a tunnel for them" in both.advice
