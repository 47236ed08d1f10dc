"""slurm-elasticd switches hosts of virtual machines, and records why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from slurm_elastic.base.errors import TransientError
from slurm_elastic.features.power.hypervisors import HypervisorsPart, join
from slurm_elastic.model.hypervisor import HostState, HostView, SwitchRules
from slurm_elastic.testing.in_memory import Inline
from tests.controller.world import ONP, World


class Hosts:
    """``views`` are what the hosts show; orders change them at once."""

    def __init__(self, *states: HostState) -> None:
        self.views = {
            f"h{n}": HostView(host=f"h{n}", state=state) for n, state in enumerate(states, 1)
        }
        self.orders: list[str] = []
        self.error = ""
        self.switch_rules = SwitchRules(idle_s=120.0, keep=1)

    def host_views(self) -> Sequence[HostView]:
        return list(self.views.values())

    def occupy(self, host: str, count: int) -> None:
        self.views[host] = HostView(host=host, state=HostState.ON, occupants=count)

    def switch_host_off(self, host: str) -> bool:
        return self._order("off", host, HostState.OFF)

    def switch_host_on(self, host: str) -> bool:
        return self._order("on", host, HostState.STARTING)

    def _order(self, order: str, host: str, state: HostState) -> bool:
        if self.error:
            raise TransientError("onp", "NotConnected", self.error)
        self.orders.append(f"{order} {host}")
        self.views[host] = HostView(host=host, state=state)
        return True


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.close()


def part(world: World, hosts: Hosts) -> HypervisorsPart:
    return HypervisorsPart(world.site, {"onp": hosts}, Inline())  # type: ignore[arg-type]


def looks(world: World, feature: HypervisorsPart, count: int) -> None:
    for _ in range(count):
        world.now += 30.0
        feature.look()


def reasons(world: World) -> list[str]:
    kinds = ("host-on", "host-off", "host-not-switched")
    return [str(d.reason) for d in world.ledger.decisions.about("pool:rack") if d.kind in kinds]


def test_without_such_hosts_the_feature_is_off(world: World) -> None:
    assert join(world.site) is None


def test_free_hosts_go_off_one_after_the_other_but_for_the_kept_one(world: World) -> None:
    hosts = Hosts(HostState.ON, HostState.ON, HostState.ON)
    feature = part(world, hosts)
    looks(world, feature, 4)
    assert hosts.orders == []
    looks(world, feature, 10)
    assert hosts.orders == ["off h1", "off h2"]
    assert reasons(world)[0] == "host h1 is shut down: no machine on it for 2m"


def test_the_next_host_comes_on_when_the_last_free_one_is_used(world: World) -> None:
    hosts = Hosts(HostState.ON, HostState.OFF, HostState.OFF)
    hosts.occupy("h1", 3)
    looks(world, part(world, hosts), 5)
    assert hosts.orders == ["on h2"]
    assert reasons(world) == ["host h2 is switched on: fewer than 1 host would be free"]


def test_a_host_that_was_used_for_a_moment_stays_on_for_its_time_again(world: World) -> None:
    hosts = Hosts(HostState.ON, HostState.ON)
    feature = part(world, hosts)
    looks(world, feature, 4)
    hosts.occupy("h1", 1)
    hosts.occupy("h2", 1)
    looks(world, feature, 1)
    hosts.occupy("h1", 0)
    hosts.occupy("h2", 0)
    looks(world, feature, 4)
    assert hosts.orders == []


def test_while_nodes_wait_for_machines_none_goes_off(world: World) -> None:
    hosts = Hosts(HostState.ON, HostState.ON)
    feature = part(world, hosts)
    world.slurm.set_node("op1", "IDLE", "CLOUD", "POWERING_UP")
    assert "op1" in ONP
    looks(world, feature, 10)
    assert hosts.orders == []


def test_a_bmc_that_fails_is_recorded_once_and_tried_again(world: World) -> None:
    hosts = Hosts(HostState.ON, HostState.ON)
    feature, hosts.error = part(world, hosts), "no route to host"
    looks(world, feature, 8)
    assert reasons(world) == ["host h1 could not be switched: NotConnected: no route to host"]
    hosts.error = ""
    looks(world, feature, 1)
    assert hosts.orders == ["off h1"]
