"""Hosts that are switched on and off: whose each is, and what is believed of one that is silent."""

from __future__ import annotations

import os
import shlex
import sqlite3
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from needs import ROOT
from patience import patience

from slurm_elastic.base.errors import (
    AuthError,
    CapacityError,
    ConfigError,
    ProviderError,
    TransientError,
    UnsettledError,
)
from slurm_elastic.config import Cluster
from slurm_elastic.config.clouds import InstanceType
from slurm_elastic.model.cluster import EndAnswer, InstanceState, LaunchSpec, Location, Market, Pool
from slurm_elastic.model.finding import FindingLevel
from slurm_elastic.providers.base.hosts.claims import Claim, Claims, claims_of
from slurm_elastic.providers.base.hosts.host_settings import HostsCloud
from slurm_elastic.providers.base.hosts.switched import SwitchedHosts
from slurm_elastic.providers.base.tags import GENERATION
from slurm_elastic.testing.contract import CLUSTER

T0 = 1_800_000_000.0
HOSTS = {"h1": "bmc1", "h2": "bmc2", "h3": "bmc3"}
POOL = Pool(
    name="rack", cloud="rack", nodes=tuple(HOSTS), cpus=2, real_memory=4000,
    markets=(Market.RESERVED,),
)  # fmt: skip
PENDING, RUNNING, STOPPING = InstanceState.PENDING, InstanceState.RUNNING, InstanceState.STOPPING


class Power:
    """Hosts in memory; ``refuse`` has what each switch says, ``silent`` the ones that say nothing."""

    def __init__(self) -> None:
        self.on: set[str] = set()
        self.orders: list[tuple[str, str]] = []
        self.asked: list[str] = []
        self.refuse: dict[str, ProviderError] = {}
        self.silent: set[str] = set()

    def is_on(self, host: str) -> bool:
        self.asked.append(host)
        if host in self.silent:
            raise TransientError("rack", "Timeout", f"{host} does not answer")
        return host in self.on

    def switch(self, host: str, word: str) -> None:
        self.orders.append((host, word))
        if host in self.refuse:
            raise self.refuse[host]


class Bed:
    def __init__(self, place: Path, hosts: Mapping[str, str] = HOSTS) -> None:
        self.hosts = hosts
        self.now, self.power = T0 - 60, Power()
        self.clock_step = 0.0
        self.file = place / "claims.db"
        self.claims = Claims("rack", self.file)
        self.provider = self.open()
        self.provider.tidy()
        self.power.asked.clear()
        self.now = T0

    def open(
        self, cluster: Cluster = CLUSTER, hosts: Mapping[str, str] | None = None
    ) -> SwitchedHosts:
        hosts = hosts or self.hosts
        settings = HostsCloud(
            name="rack", location=Location.ON_PREMISES, hosts=dict(hosts),
            types={"host": InstanceType(cpus=2, memory=4096, price=0.05)},
            power_on_timeout=120.0, power_off_timeout=180.0,
        )  # fmt: skip
        return SwitchedHosts(
            settings, cluster, self.power, self.claims, lambda: self.now + self.clock_step,
            lambda: self.now,
        )  # fmt: skip

    def spec(self, *nodes: str, generation: str = "g1") -> LaunchSpec:
        offer = self.provider.offers(POOL)[0]
        return LaunchSpec(generation=generation, pool=POOL, nodes=nodes, offer=offer)

    def launch(self, *nodes: str, generation: str = "g1") -> list[str]:
        found = self.provider.launch(self.spec(*nodes, generation=generation))
        return [one.id for one in found]

    def states(self) -> dict[str, InstanceState]:
        return {one.node: one.state for one in self.provider.tidy()}

    def claimed(self) -> set[str]:
        return set(self.claims.all())


@pytest.fixture
def bed(tmp_path: Path) -> Bed:
    return Bed(tmp_path)


# starting


def test_a_free_host_is_claimed_and_switched_on(bed: Bed) -> None:
    assert [o.free for o in bed.provider.offers(POOL)] == [3]
    assert bed.launch("h1", "h2") == ["h1-g1", "h2-g1"]
    assert sorted(bed.power.orders) == [("h1", "on"), ("h2", "on")]
    assert [o.free for o in bed.provider.offers(POOL)] == [1]
    (machine, _) = bed.provider.instances()
    assert (machine.price, machine.launched, machine.instance_type) == (0.05, T0, "host")


@pytest.mark.parametrize(
    ("error", "kept"),
    [
        (AuthError("rack", "HTTP401", "who are you"), set()),
        (TransientError("rack", "HTTP500", "perhaps"), {"h1"}),
    ],
    ids=["refused", "in doubt"],
)
def test_a_host_that_was_not_switched_on_is_free_again_and_one_in_doubt_is_not(
    bed: Bed, error: ProviderError, kept: set[str]
) -> None:
    bed.power.refuse["h1"] = error
    with pytest.raises(type(error)):
        bed.launch("h1")
    assert bed.claimed() == kept


def test_what_is_no_host_or_in_use_cannot_be_had(bed: Bed) -> None:
    bed.power.on = {"h2"}
    with pytest.raises(CapacityError, match="no host is named h9"):
        bed.launch("h9")
    with pytest.raises(CapacityError, match="h2 is on, but slurm-elastic did not switch it on"):
        bed.launch("h2")
    assert bed.claimed() == set()
    assert bed.power.orders == []


def test_a_repeated_launch_gives_its_order_again_where_nothing_is_on_yet(bed: Bed) -> None:
    bed.launch("h1", "h2")
    bed.launch("h3", generation="g2")
    bed.power.on = {"h2"}
    bed.power.orders.clear()
    assert bed.launch("h1", "h2") == ["h1-g1", "h2-g1"]
    assert bed.power.orders == [("h1", "on")]


def test_a_launch_whose_host_went_off_has_no_machine_and_gets_no_other(bed: Bed) -> None:
    bed.launch("h1")
    bed.power.on = {"h1"}
    bed.states()
    bed.power.on = set()
    bed.states()
    bed.now += 60
    bed.states()
    with pytest.raises(CapacityError, match="MachinesGone"):
        bed.launch("h1")
    assert bed.power.orders == [("h1", "on")]


# what a look shows


def test_one_that_was_seen_on_and_is_off_is_over(bed: Bed) -> None:
    bed.launch("h1")
    assert bed.states() == {"h1": PENDING}
    bed.power.on = {"h1"}
    assert bed.states() == {"h1": RUNNING}
    bed.power.on = set()
    assert bed.states() == {"h1": RUNNING}
    bed.now += 60
    assert bed.states() == {}
    assert bed.claimed() == set()


@pytest.mark.parametrize("between", ["on", "silent"])
def test_a_bmc_that_says_off_while_it_restarts_loses_no_host(bed: Bed, between: str) -> None:
    bed.launch("h1")
    bed.power.on = {"h1"}
    bed.states()
    for _ in range(3):
        bed.power.on = set()
        assert bed.states() == {"h1": RUNNING}
        bed.now += 59
        assert bed.states() == {"h1": RUNNING}
        bed.power.on = {"h1"}
        bed.power.silent = set(HOSTS) if between == "silent" else set()
        if between == "silent":
            with pytest.raises(TransientError):
                bed.states()
        else:
            assert bed.states() == {"h1": RUNNING}
        bed.power.silent = set()
        bed.now += 30
    assert bed.states() == {"h1": RUNNING}
    bed.provider.terminate(["h1-g1"])
    assert bed.power.orders[-1] == ("h1", "shutdown"), "it is still ours"


def test_a_list_gives_no_order_and_releases_no_host(bed: Bed) -> None:
    bed.launch("h1", "h2")
    bed.power.on = {"h1"}
    bed.states()
    bed.provider.terminate(["h1-g1"])
    orders = list(bed.power.orders)
    for _ in range(3):
        bed.now += 1000
        bed.power.on ^= {"h1"}
        assert {m.node for m in bed.open().instances()} == {"h1", "h2"}
    assert bed.power.orders == orders
    assert bed.claimed() == {"h1", "h2"}


@pytest.mark.parametrize("step", [7200.0, -7200.0])
def test_a_clock_that_is_set_neither_hurries_nor_delays_a_host(bed: Bed, step: float) -> None:
    bed.launch("h1", "h2")
    bed.power.on = {"h1"}
    bed.states()
    bed.provider.terminate(["h1-g1"])
    bed.states()
    bed.clock_step = step
    bed.now += 100
    assert bed.states() == {"h1": STOPPING, "h2": PENDING}
    assert ("h1", "off") not in bed.power.orders
    bed.now += 100
    assert bed.states() == {"h1": STOPPING, "h2": STOPPING}
    assert ("h1", "off") in bed.power.orders
    assert ("h2", "off") in bed.power.orders


def test_one_that_does_not_come_on_in_its_time_ends(bed: Bed) -> None:
    bed.launch("h1")
    bed.now = T0 + 119
    assert bed.states() == {"h1": PENDING}
    assert bed.power.orders == [("h1", "on")]
    bed.now = T0 + 120
    assert bed.states() == {"h1": STOPPING}
    assert bed.power.orders[1:] == [("h1", "off")], "it may have an order to come on"
    bed.now += 60
    assert bed.states() == {}
    assert bed.claimed() == set()


def test_one_that_does_not_shut_down_in_its_time_is_switched_off(bed: Bed) -> None:
    bed.launch("h1")
    bed.power.on = {"h1"}
    bed.states()
    bed.now = T0 + 1000
    bed.provider.terminate(["h1-g1"])
    assert bed.power.orders[1:] == [("h1", "shutdown")]
    bed.now += 179
    assert bed.states() == {"h1": STOPPING}
    assert len(bed.power.orders) == 2
    bed.now += 1
    assert bed.states() == {"h1": STOPPING}
    assert bed.power.orders[2:] == [("h1", "off")]


def test_ended_before_it_was_on_it_is_kept_until_it_cannot_come_on_any_more(bed: Bed) -> None:
    bed.launch("h1")
    bed.provider.terminate(["h1-g1"])
    assert bed.power.orders[1:] == [("h1", "off")]
    assert bed.states() == {"h1": STOPPING}
    bed.now += 120
    assert bed.states() == {}


def test_a_silent_host_is_as_it_was_and_where_all_are_nothing_is_known(bed: Bed) -> None:
    bed.launch("h1", "h2")
    bed.power.on = {"h1", "h2"}
    bed.states()
    bed.power.silent, bed.power.on = {"h1"}, {"h1"}
    bed.states()
    bed.now += 60
    assert bed.states() == {"h1": RUNNING}
    bed.power.silent = set(HOSTS)
    with pytest.raises(TransientError, match="h1 does not answer"):
        bed.provider.instances()
    bed.power.silent = set()
    assert bed.states() == {"h1": RUNNING}


def test_without_a_machine_one_host_says_whether_the_rack_answers(bed: Bed) -> None:
    assert bed.provider.instances() == ()
    bed.provider.check()
    assert bed.power.asked == ["h1", "h1"]
    bed.power.silent = set(HOSTS)
    for ask in (bed.provider.instances, bed.provider.check):
        with pytest.raises(TransientError, match="h1 does not answer"):
            ask()


def test_a_dead_bmc_makes_no_other_host_unusable(bed: Bed) -> None:
    bed.power.silent = {"h1"}
    bed.provider.check()
    assert bed.provider.instances() == ()
    assert bed.launch("h2") == ["h2-g1"]
    bed.power.on, bed.power.silent = {"h2"}, {"h1"}
    bed.states()
    bed.power.silent = {"h1", "h2"}
    assert bed.states() == {"h2": RUNNING}, "the last known state of the silent host"
    assert bed.launch("h3", generation="g2") == ["h3-g2"]


def test_one_answer_of_a_restarting_bmc_releases_no_host_that_shuts_down(bed: Bed) -> None:
    bed.launch("h1")
    bed.power.on = {"h1"}
    bed.states()
    bed.provider.terminate(["h1-g1"])
    bed.power.on = set()
    assert bed.states() == {"h1": STOPPING}
    bed.power.on = {"h1"}
    bed.now += 180
    assert bed.states() == {"h1": STOPPING}
    assert bed.power.orders[-1] == ("h1", "off"), "it is still ours"
    bed.power.on = set()
    bed.states()
    bed.now += 60
    assert bed.states() == {}
    assert bed.claimed() == set()


def test_a_host_of_another_person_is_not_claimed_for_one_answer_of_its_bmc(bed: Bed) -> None:
    bed.power.on = {"h1"}
    bed.states()
    bed.power.on = set()
    with pytest.raises(UnsettledError, match="h1 is off if it still says so 1m from now"):
        bed.launch("h1")
    assert bed.claimed() == set()
    bed.power.on = {"h1"}
    bed.now += 90
    with pytest.raises(CapacityError, match="h1 is on"):
        bed.launch("h1")
    assert bed.power.orders == []


def test_a_machine_without_a_claim_is_gone_only_if_its_host_is_proven_off(bed: Bed) -> None:
    bed.power.on = {"h1"}
    assert bed.provider.terminate(["h1-g1"]) == {"h1-g1": EndAnswer.NOT_OURS}
    bed.power.on = set()
    with pytest.raises(UnsettledError):
        bed.provider.terminate(["h1-g1"])
    bed.now += 60
    assert bed.provider.terminate(["h1-g1"]) == {"h1-g1": EndAnswer.GONE}


def test_a_host_that_has_just_been_released_is_used_again_at_once(bed: Bed) -> None:
    bed.launch("h1")
    bed.power.on = {"h1"}
    bed.states()
    bed.provider.terminate(["h1-g1"])
    bed.power.on = set()
    bed.states()
    bed.now += 60
    assert bed.states() == {}
    assert bed.provider.terminate(["h1-g1"]) == {"h1-g1": EndAnswer.GONE}
    assert bed.launch("h1", generation="g2") == ["h1-g2"]


def test_many_hosts_that_go_off_at_once_are_in_doubt_and_none_is_released(tmp_path: Path) -> None:
    bed = Bed(tmp_path, {f"h{n}": f"bmc{n}" for n in range(1, 16)})
    bed.launch(*bed.hosts)
    bed.power.on = set(bed.hosts)
    bed.states()
    bed.provider.terminate(["h15-g1"])
    off, on = {"h1", "h2", "h3", "h15"}, {"h4"}
    bed.power.on -= off | on
    bed.states()
    bed.now += 600
    assert set(bed.states()) == set(bed.hosts), "nor is a host whose end was ordered"
    assert "4 of 15 hosts say at once that they are off, without our order: h[1-4]" in (
        bed.provider.trouble
    )
    assert FindingLevel.WRONG in [f.level for f in bed.provider.examine([POOL])]
    bed.power.on |= on
    assert set(bed.states()) == set(bed.hosts) - off, "three of fifteen are believed"
    assert bed.provider.trouble == ""


def test_hosts_that_slurm_has_given_up_are_released_after_all(bed: Bed) -> None:
    bed.launch("h1", "h2", "h3")
    bed.power.on = {"h1", "h2", "h3"}
    bed.states()
    bed.power.on = set()
    bed.states()
    bed.now += 600
    assert bed.states() == {"h1": RUNNING, "h2": RUNNING, "h3": RUNNING}
    bed.provider.terminate(["h3-g1"])
    assert bed.states() == {}


def test_hosts_of_another_cluster_or_of_no_configuration_are_not_ours(bed: Bed) -> None:
    bed.launch("h1", "h2")
    other = bed.open(cluster=replace(CLUSTER, uuid="11111111-2222-3333-4444-555555555555"))
    assert other.instances() == ()
    other.terminate(["h1-g1"])
    assert [m.node for m in bed.open(hosts={"h2": "bmc2"}).instances()] == ["h2"]
    assert sorted(bed.power.orders) == [("h1", "on"), ("h2", "on")]


# ending


def test_an_id_of_an_earlier_launch_or_of_nobody_ends_nothing(bed: Bed) -> None:
    bed.launch("h1")
    bed.provider.terminate(["h1-g0", "h1", "h2-g1"])
    assert bed.power.orders == [("h1", "on")]


@pytest.mark.parametrize("now_of", ["nobody", "g2"])
def test_a_host_that_changed_hands_while_others_ended_is_left_alone(
    bed: Bed, monkeypatch: pytest.MonkeyPatch, now_of: str
) -> None:
    bed.launch("h1")
    (claim,) = bed.claims.all().values()
    listed = bed.provider._update()

    def handed_on() -> object:
        bed.claims.release("h1", claim)
        if now_of != "nobody":
            bed.claims.take("h1", replace(claim, marks=claim.marks | {GENERATION: now_of}))
        return listed

    monkeypatch.setattr(bed.provider, "_update", handed_on)
    bed.provider.terminate(["h1-g1"])
    assert bed.power.orders == [("h1", "on")]


def test_it_ends_also_where_that_cannot_be_noted(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    bed.launch("h1")
    bed.power.on = {"h1"}
    bed.states()

    def full(*_: object) -> bool:
        raise TransientError("rack", "NoClaims", "disk full")

    monkeypatch.setattr(bed.claims, "change", full)
    bed.provider.terminate(["h1-g1"])
    assert bed.power.orders[1:] == [("h1", "shutdown")]


def test_a_second_order_to_end_does_not_begin_its_time_anew(bed: Bed) -> None:
    bed.launch("h1")
    bed.power.on = {"h1"}
    bed.states()
    bed.provider.terminate(["h1-g1"])
    bed.now += 100
    bed.provider.terminate(["h1-g1"])
    assert bed.claims.all()["h1"].ending == T0


# doctor


def test_each_host_is_told_of(bed: Bed) -> None:
    bed.launch("h1")
    bed.power.on, bed.power.silent = {"h1", "h2"}, {"h3"}
    found = {one.subject: one for one in bed.provider.examine([POOL])}
    assert (found["host h1"].level, found["host h1"].observed) == (FindingLevel.OK, "on, ours")
    assert found["host h2"].level is FindingLevel.NOTE
    assert "on, but slurm-elastic did not switch it on" in found["host h2"].observed
    assert "if nobody uses it" in found["host h2"].advice, "a way back for a host that was given up"
    assert found["host h3"].level is FindingLevel.WRONG
    assert "Timeout: h3 does not answer" in found["host h3"].observed
    bed.power.on, bed.power.silent = set(), set()
    found = {one.subject: one for one in bed.provider.examine([POOL])}
    assert {(one.level, one.observed) for one in found.values()} == {(FindingLevel.OK, "off")}


def test_and_of_claims_that_cannot_be_read(bed: Bed) -> None:
    bed.file.write_text("no database" * 100)
    (one,) = bed.provider.examine([POOL])
    assert (one.subject, one.level) == ("claims", FindingLevel.WRONG)
    assert "NoClaims" in one.observed


# claims


def test_a_claim_is_the_first_ones(bed: Bed) -> None:
    one, other = Claim(marks={"a": "1"}), Claim(marks={"a": "2"})
    assert bed.claims.take("h1", one)
    assert not bed.claims.take("h1", other)
    assert bed.claims.all() == {"h1": one}
    assert not bed.claims.change("h1", other, replace(other, seen=True))
    bed.claims.release("h1", other)
    assert bed.claims.all() == {"h1": one}, "what another process has changed is not ours to change"
    assert bed.claims.change("h1", one, other)
    bed.claims.release("h1", other)
    assert bed.claims.all() == {}


def test_claims_that_another_process_holds_are_in_doubt_and_nothing_has_changed(bed: Bed) -> None:
    bed.claims.take("h1", Claim(marks={}))
    with sqlite3.connect(bed.file) as other:
        other.execute("begin exclusive")
        with pytest.raises(TransientError, match="cannot be used: database is locked"):
            Claims("rack", bed.file, timeout=0.05).take("h2", Claim(marks={}))
        other.rollback()
    assert bed.claimed() == {"h1"}


@ROOT
@pytest.mark.parametrize(("option", "is_told"), [("ro", True), ("rw", False)])
def test_claims_that_a_unit_may_not_write_say_what_it_lacks(
    tmp_path: Path, option: str, *, is_told: bool
) -> None:
    """For sqlite a read-only directory is a database that cannot be opened."""
    take = (
        "import pathlib, sys; from slurm_elastic.providers.base.hosts.claims import Claim, Claims\n"
        "Claims('rack', pathlib.Path(sys.argv[1])).take('h1', Claim(marks={}))"
    )
    mount = f"mount -t tmpfs -o {option} none {tmp_path} && exec "
    words = shlex.join([sys.executable, "-c", take, f"{tmp_path}/rack.db"])
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", mount + words],
        capture_output=True, text=True, check=False, timeout=patience(60),
    )  # fmt: skip
    assert (f"a unit needs ReadWritePaths={tmp_path}" in done.stderr) is is_told
    assert (done.returncode == 0) is not is_told, done.stderr


def test_a_claim_is_on_the_disk_before_its_host_is_touched(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever sqlite does by itself."""
    whole = sqlite3.connect

    def lazy(*args: Any, **options: Any) -> sqlite3.Connection:
        made = whole(*args, **options)
        made.execute("pragma synchronous = off")
        return made

    monkeypatch.setattr(sqlite3, "connect", lazy)
    with bed.claims._opened() as db:
        assert db.execute("pragma synchronous").fetchone()[0] == 2, "sqlite's number of full"
    links = [Path("/proc/self/fd", fd) for fd in os.listdir("/proc/self/fd")]
    assert str(bed.file) not in [os.readlink(one) for one in links if os.path.lexists(one)]


def test_where_the_claims_are_is_said_by_the_settings_or_the_state_directory(
    tmp_path: Path,
) -> None:
    settings = HostsCloud(
        name="rack", location=Location.ON_PREMISES, hosts=HOSTS,
        types={"host": InstanceType(cpus=2, memory=4096, price=0.05)},
    )  # fmt: skip
    site = SimpleNamespace(state=tmp_path)
    claims_of(settings, str(tmp_path / "own.db"), None).take("h1", Claim(marks={}))
    claims_of(settings, str(tmp_path / "own.db"), site).take("h2", Claim(marks={}))  # type: ignore[arg-type]
    assert {path.name for path in tmp_path.iterdir()} == {"own.db", "claims"}
    assert Claims("rack", tmp_path / "own.db").all().keys() == {"h1", "h2"}
    without_key = claims_of(settings, None, site)  # type: ignore[arg-type]
    assert without_key.all().keys() == {"h1", "h2"}, "they are found if the key is gone"
    moved = claims_of(settings, str(tmp_path / "moved.db"), site)  # type: ignore[arg-type]
    moved.take("h3", Claim(marks={}))
    assert without_key.all().keys() == {"h3"}
    with pytest.raises(ConfigError, match="cloud 'rack': no file for its claims is named"):
        claims_of(settings, None, None)


@pytest.mark.parametrize("named", [True, False], ids=["named", "no longer named"])
def test_claims_on_a_disk_that_is_not_mounted_are_unknown_not_gone(
    named: bool, tmp_path: Path
) -> None:
    """Else hosts that run jobs would be lost, and a new file would hide their claims for ever."""
    site, disk = SimpleNamespace(state=tmp_path / "state"), tmp_path / "disk"
    site.state.mkdir()
    disk.mkdir()
    file = disk / "claims" / "rack.db"
    claims_of(settings(), str(file), site).take("h1", Claim(marks={}))  # type: ignore[arg-type]
    disk.rename(tmp_path / "unmounted")
    disk.mkdir()
    claims = claims_of(settings(), str(file) if named else None, site)  # type: ignore[arg-type]
    with pytest.raises(TransientError, match="was there and is away: is its disk mounted"):
        claims.all()
    with pytest.raises(TransientError, match="was there and is away: is its disk mounted"):
        claims.take("h2", Claim(marks={}))
    assert not list(disk.iterdir())
    disk.rmdir()
    (tmp_path / "unmounted").rename(disk)
    assert claims.all().keys() == {"h1"}


def test_claims_that_were_there_before_the_settings_named_a_file_stay(tmp_path: Path) -> None:
    site = SimpleNamespace(state=tmp_path)
    claims_of(settings(), None, site).take("h1", Claim(marks={}))  # type: ignore[arg-type]
    claims_of(settings(), str(tmp_path / "own.db"), site).take("h2", Claim(marks={}))  # type: ignore[arg-type]
    assert claims_of(settings(), None, site).all().keys() == {"h1"}  # type: ignore[arg-type]


# settings


def settings(**more: object) -> HostsCloud:
    least = {
        "name": "rack", "location": "on-premises", "hosts": HOSTS,
        "types": {"host": {"cpus": 2, "memory": 4096, "price": 0.05}},
    }  # fmt: skip
    return msgspec.convert(least | more, HostsCloud)


def test_what_is_not_said_is_as_people_are_told(tmp_path: Path) -> None:
    """docs/configuration-clouds.md."""
    found = settings()
    assert (found.power_on_timeout, found.power_off_timeout, found.claims_file) == (120, 180, None)
    assert found.room == 3
    assert Market.SPOT not in found.markets


@pytest.mark.parametrize("nothing", ["hosts", "types"])
def test_a_cloud_of_hosts_has_some(nothing: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        settings(**{nothing: {}})


def test_a_host_that_changes_hands_while_it_is_asked_is_left_alone(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    bed.launch("h1")
    bed.power.on = {"h1"}
    bed.states()
    is_on = bed.power.is_on

    def handed_on(host: str) -> bool:
        (claim,) = bed.claims.all().values()
        bed.claims.release(host, claim)
        marks = claim.marks | {GENERATION: "g2"}
        bed.claims.take(host, replace(claim, marks=marks, seen=False, ending=None))
        return is_on(host)

    answers = iter([is_on, handed_on])
    monkeypatch.setattr(bed.power, "is_on", lambda host: next(answers, is_on)(host))
    with pytest.raises(TransientError, match="its claim has just changed"):
        bed.provider.terminate(["h1-g1"])
    assert bed.power.orders == [("h1", "on")]
    bed.provider.terminate(["h1-g2"])
    bed.now += 1000  # it hangs on its way down
    answers = iter([handed_on])
    bed.states()
    assert bed.power.orders[1:] == [("h1", "shutdown")]
