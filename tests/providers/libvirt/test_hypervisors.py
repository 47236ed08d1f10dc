"""Hosts that are shut down by their BMCs and switched on again: a real libvirtd, and OpenStack's
emulator of BMCs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from patience import eventually, patience
from providers.redfish.bed import Bmcs, running

from slurm_elastic.base.errors import CapacityError, ConfigError, ProviderError, TransientError
from slurm_elastic.config import Cluster, PoolSettings
from slurm_elastic.features.power.hypervisors import HypervisorsPart
from slurm_elastic.model.cluster import Location
from slurm_elastic.model.finding import FindingLevel
from slurm_elastic.model.hypervisor import HostState, HostView, SwitchRules
from slurm_elastic.providers import open_provider
from slurm_elastic.providers.base.hosts import host_switch
from slurm_elastic.providers.base.hosts.claims import Claims
from slurm_elastic.providers.base.hosts.host_switch import SHUTDOWN_S, HostSwitch, failed_boots
from slurm_elastic.providers.base.hosts.hosted_cloud import Hypervisors as Settings
from slurm_elastic.providers.base.hosts.hosted_cloud import claims_file
from slurm_elastic.providers.fake.settings import FakeCloud
from slurm_elastic.providers.libvirt.provider import LibvirtProvider
from slurm_elastic.testing.contract import UUID, spec_for
from slurm_elastic.testing.in_memory import Inline
from tests.controller.world import SHAPE, World, make_config

from .bed import HOST, LibvirtBed

BMC = "h1"
ON = HostView(host=HOST, state=HostState.ON)


@pytest.fixture
def bmcs(tmp_path: Path) -> Iterator[Bmcs]:
    with running(tmp_path) as made:
        made.clear()
        made.press(BMC, "On")
        yield made


@pytest.fixture
def switched(bed: LibvirtBed, bmcs: Bmcs, tmp_path: Path) -> LibvirtProvider:
    """A provider that may switch its only host, on which nobody else has a domain."""
    for domain in bed.hand.listAllDomains():
        if domain.isActive():
            domain.destroy()
        domain.undefine()
    return opened(bed, bmcs, tmp_path)


def opened(
    bed: LibvirtBed, bmcs: Bmcs, place: Path, timeout: float | None = None
) -> LibvirtProvider:
    login = place / "bmc.json"
    login.touch(mode=0o600)
    login.write_text(json.dumps({"username": "elastic", "password": "emulator"}))
    hypervisors = Settings(
        bmcs={HOST: f"{bmcs.url}/{bmcs.ids[BMC]}"}, credentials_file=str(login),
        claims_file=str(place / "claims.db"), keep=0,
    )  # fmt: skip
    settings = bed.settings(api_timeout=timeout or patience(2.0), hypervisors=hypervisors)
    provider = open_provider(settings, Cluster(name="site", uuid=UUID))
    assert isinstance(provider, LibvirtProvider)
    return provider


def test_a_host_without_machines_goes_off_and_comes_back(
    bed: LibvirtBed, bmcs: Bmcs, switched: LibvirtProvider, tmp_path: Path
) -> None:
    assert switched.switch_rules == SwitchRules(idle_s=600.0, keep=0)
    (machine,) = switched.launch(spec_for(bed, switched, 1))
    assert switched.host_views() == [HostView(host=HOST, state=HostState.ON, occupants=1)]
    assert not switched.switch_host_off(HOST), "it has a machine"
    assert bmcs.on() == {BMC}
    switched.terminate([machine.id])
    assert switched.host_views() == [ON], "the ended machine stays for a while, and does not count"
    assert switched.switch_host_off(HOST)
    assert bmcs.on() == set()
    bed.fall_silent()
    for provider in (switched, opened(bed, bmcs, tmp_path)):  # also after a restart
        assert provider.host_views() == [HostView(host=HOST, state=HostState.OFF)]
        assert provider.instances() == ()
        assert provider.offers(bed.pool) == ()
        provider.check()
        assert not provider.switch_host_off(HOST)
        (finding,) = provider.examine([bed.pool])
        assert finding.observed == "switched off by slurm-elastic, because it had no machine"
    assert switched.switch_host_on(HOST)
    assert bmcs.on() == {BMC}
    assert switched.host_views() == [HostView(host=HOST, state=HostState.STARTING)]
    assert switched.instances() == (), "a host that boots makes no list incomplete"
    bed.heal()
    assert switched.host_views() == [ON]
    assert [m.node for m in switched.launch(spec_for(bed, switched, 1, generation="g2"))] == ["vm1"]
    assert not switched.switch_host_on(HOST), "it is not ours to switch now"


def test_no_machine_starts_on_a_host_that_goes_off(
    bed: LibvirtBed, switched: LibvirtProvider
) -> None:
    spec = spec_for(bed, switched, 1)
    assert switched.switch_host_off(HOST)
    with pytest.raises(CapacityError, match="is switched off"):
        switched.launch(spec)
    assert bed.domains() == {}


def test_domains_of_other_people_keep_a_host_on_running_or_not(
    bed: LibvirtBed, bmcs: Bmcs, switched: LibvirtProvider
) -> None:
    (number,) = bed.add_foreign()
    assert switched.host_views() == [HostView(host=HOST, state=HostState.ON, occupants=1)]
    bed.domains()[number].destroy()
    assert switched.host_views() == [HostView(host=HOST, state=HostState.ON, occupants=1)]
    assert not switched.switch_host_off(HOST)
    assert bmcs.on() == {BMC}


def test_a_stopped_machine_keeps_its_host_on(
    bed: LibvirtBed, bmcs: Bmcs, switched: LibvirtProvider
) -> None:
    (machine,) = switched.launch(spec_for(bed, switched, 1))
    switched.stop([machine.id])
    assert not switched.switch_host_off(HOST)
    assert bmcs.on() == {BMC}


def test_a_host_that_does_not_answer_is_unknown_and_stays_on(
    bed: LibvirtBed, bmcs: Bmcs, tmp_path: Path
) -> None:
    switched = opened(bed, bmcs, tmp_path, timeout=1.0)
    bed.fall_silent()
    assert switched.host_views() == [HostView(host=HOST, state=HostState.UNKNOWN)]
    with pytest.raises(ProviderError):
        switched.switch_host_off(HOST)
    assert bmcs.on() == {BMC}


def test_a_lost_answer_of_the_bmc_leaves_the_host_away_until_it_answers(
    bed: LibvirtBed, bmcs: Bmcs, switched: LibvirtProvider
) -> None:
    bmcs.trouble = {"terminate": ["reset after", 10**6]}
    with pytest.raises(TransientError):
        switched.switch_host_off(HOST)
    bmcs.heal()
    assert bmcs.on() == set()
    assert switched.host_views() == [HostView(host=HOST, state=HostState.OFF)]
    bmcs.trouble = {"list": ["internal", 10**6]}
    assert switched.host_views() == [HostView(host=HOST, state=HostState.UNKNOWN)]


def test_a_host_that_is_off_when_the_section_goes_is_left_out_and_told(
    bed: LibvirtBed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config(tmp_path)
    settings = bed.settings()
    claims = Claims(settings.name, claims_file(settings, config))
    now = [0.0]
    HostSwitch(
        [HOST], Button(), claims, SwitchRules(idle_s=0, keep=0), 0.0, lambda: now[0]
    ).shut_down(HOST)
    bed.fall_silent()
    provider = open_provider(settings, Cluster(name="site", uuid=UUID), config)
    assert isinstance(provider, LibvirtProvider)
    assert provider.instances() == (), "the other hosts are of use"
    assert provider.host_views() == []
    (finding,) = provider.examine([bed.pool])
    assert finding.level is FindingLevel.WRONG
    assert "'hypervisors' no longer names it" in finding.observed
    assert "by hand" in finding.advice
    bed.heal()
    assert provider.host_views() == []
    assert claims.all(), "it may be on its way down"
    monkeypatch.setattr(host_switch, "SHUTDOWN_S", 0.0)
    assert provider.host_views() == []
    assert claims.all() == {}, "somebody has switched it on"
    assert provider.offers(bed.pool)


class Button:
    """A BMC in memory. ``deaf``: the host ignores the order to shut down."""

    def __init__(self, *, can_shut_down: bool = True, deaf: bool = False) -> None:
        self.on, self.can_shut_down, self.deaf = True, can_shut_down, deaf
        self.orders: list[str] = []

    def is_on(self, host: str) -> bool:
        del host
        return self.on

    def switch(self, host: str, order: str) -> None:
        self.orders.append(f"{order} {host}")
        self.on = order == "on"

    def shut_down(self, host: str) -> None:
        if not self.can_shut_down:
            raise ProviderError("lab", "NoShutdown", f"{host}: its BMC knows no GracefulShutdown")
        self.orders.append(f"shutdown {host}")
        self.on = self.deaf


def switch_of(button: Button, place: Path, now: list[float]) -> HostSwitch:
    rules = SwitchRules(idle_s=600.0, keep=1)
    claims = Claims("lab", place / "claims.db")
    return HostSwitch(["a"], button, claims, rules, 300.0, lambda: now[0], lambda: now[0])


def state(switch: HostSwitch, *, answers: bool) -> HostState | None:
    """None: the host is not away."""
    claim = switch.away().get("a")
    return None if claim is None else switch.state("a", claim, lambda: answers)


def test_the_power_of_a_host_is_never_cut(tmp_path: Path) -> None:
    button, now = Button(can_shut_down=False), [0.0]
    switch = switch_of(button, tmp_path, now)
    with pytest.raises(ProviderError, match="GracefulShutdown"):
        switch.shut_down("a")
    assert switch.away() == {}
    assert button.orders == []


def test_a_host_that_ignores_the_order_is_used_again_after_a_time(tmp_path: Path) -> None:
    button, now = Button(deaf=True), [0.0]
    switch = switch_of(button, tmp_path, now)
    assert switch.shut_down("a")
    now[0] = SHUTDOWN_S - 1
    assert state(switch, answers=True) is HostState.STOPPING, "it may still go off"
    now[0] = SHUTDOWN_S
    assert state(switch, answers=True) is HostState.STOPPING, "its shutdown may be slow"
    now[0] = 2 * SHUTDOWN_S
    assert state(switch, answers=True) is HostState.ON
    assert switch.away() == {}


def test_a_host_with_a_slow_shutdown_keeps_its_claim(tmp_path: Path) -> None:
    button, now = Button(deaf=True), [0.0]
    switch = switch_of(button, tmp_path, now)
    switch.shut_down("a")
    now[0] = 2 * SHUTDOWN_S - 1
    state(switch, answers=True)
    button.on = False
    assert state(switch, answers=False) is HostState.OFF
    assert switch.switch_on("a")


def test_a_clock_that_is_set_while_a_host_shuts_down_changes_nothing(tmp_path: Path) -> None:
    button, clock = Button(deaf=True), [1e9]
    rules, claims = SwitchRules(idle_s=600.0, keep=1), Claims("lab", tmp_path / "claims.db")
    switch = HostSwitch(["a"], button, claims, rules, 300.0, lambda: clock[0], lambda: 5.0)
    switch.shut_down("a")
    for step in (3600.0, -7200.0):
        clock[0] += step
        assert state(switch, answers=True) is HostState.STOPPING
    button.on = False
    assert state(switch, answers=False) is HostState.OFF
    assert switch.switch_on("a")
    clock[0] += 3600.0
    assert state(switch, answers=False) is HostState.STARTING


def test_a_host_that_does_not_boot_in_time_may_be_ordered_on_again(tmp_path: Path) -> None:
    button, now = Button(), [0.0]
    switch = switch_of(button, tmp_path, now)
    switch.shut_down("a")
    assert switch.switch_on("a")
    now[0] = 299.0
    assert state(switch, answers=False) is HostState.STARTING
    now[0] = 300.0
    assert state(switch, answers=False) is HostState.OFF
    assert switch.switch_on("a")
    assert state(switch, answers=False) is HostState.STARTING
    assert button.orders == ["shutdown a", "on a", "on a"]


def test_boots_that_fail_are_counted_until_the_host_is_back(tmp_path: Path) -> None:
    button, now = Button(), [0.0]
    switch = switch_of(button, tmp_path, now)

    def failed() -> int:
        claim = switch.away()["a"]
        return failed_boots(claim, switch.state("a", claim, lambda: False))

    switch.shut_down("a")
    assert failed() == 0
    for number in range(2):
        switch.switch_on("a")
        assert failed() == number, "it may come up"
        now[0] += 300.0
        assert failed() == number + 1
    assert state(switch, answers=True) is HostState.ON
    switch.shut_down("a")
    assert failed() == 0


def test_a_host_that_somebody_else_switched_off_is_not_switched_on(tmp_path: Path) -> None:
    button = Button()
    assert not switch_of(button, tmp_path, [0.0]).switch_on("a")
    assert button.orders == []


def test_wrong_settings_are_refused(bed: LibvirtBed, tmp_path: Path) -> None:
    missing = Settings(
        bmcs={HOST: "http://127.0.0.1/x"}, credentials_file=str(tmp_path / "none.json"),
        claims_file=str(tmp_path / "claims.db"),
    )  # fmt: skip
    with pytest.raises(ConfigError, match="cannot be read"):
        open_provider(bed.settings(hypervisors=missing), Cluster(name="site", uuid=UUID))


def test_slurm_elasticd_switches_a_real_host_off_and_on_again(
    bed: LibvirtBed, bmcs: Bmcs, switched: LibvirtProvider
) -> None:
    """The daemon's own part over a real libvirtd and an emulated BMC."""
    clouds = (FakeCloud(name="lab", location=Location.ON_PREMISES, types=SHAPE, stock=None),)
    pools = (PoolSettings(name="vm", cloud="lab", nodes="vm[1-2]", cpus=2, memory=4096),)
    world = World(clouds=clouds, pools=pools)
    try:
        feature = HypervisorsPart(world.site, {"lab": switched}, Inline())  # type: ignore[arg-type]

        def looks(count: int) -> None:
            for _ in range(count):
                world.now += 30.0
                feature.look()

        looks(20)
        assert bmcs.on() == {BMC}, "free for less than 10 minutes"
        looks(1)
        assert bmcs.on() == set()
        bed.fall_silent()
        looks(5)
        assert bmcs.on() == set(), "nothing needs it"
        world.slurm.set_node("vm1", "IDLE", "CLOUD", "POWERING_UP")
        looks(1)
        assert bmcs.on() == {BMC}
        bed.heal()
        eventually(lambda: switched.host_views() == [ON], 60, lambda: "the host is not back")
        kinds = [d.kind for d in world.ledger.decisions.about("pool:vm")]
        assert kinds == ["host-off", "host-on"]
    finally:
        world.close()
