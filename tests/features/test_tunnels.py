"""Machines' keys are believed once, the hub is told who may come, and a crash between any two steps
is over with the next look.
"""

from __future__ import annotations

import base64
import dataclasses
import gc
import logging
import os
import socket
import subprocess
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from meanwhile import Meanwhile, Watched
from msgspec.structs import replace
from patience import eventually

from slurm_elastic.base.errors import TransientError
from slurm_elastic.config import Cluster, Config, PoolSettings
from slurm_elastic.config.clouds import InstanceType
from slurm_elastic.config.sections.joining import (
    Enrol,
    Firewall,
    Join,
    Network,
    NetworkKind,
    Opener,
)
from slurm_elastic.config.tunnel import clouds_with_tunnel, node_addresses
from slurm_elastic.controller.context import Site, new_generation
from slurm_elastic.features.network import enrolment, tunnels
from slurm_elastic.features.network.addresses import enrolment_word, in_tunnel
from slurm_elastic.features.network.enrolment import Desk, word_of
from slurm_elastic.features.network.tunnel_keys import printed_key
from slurm_elastic.features.network.tunnels import HEALTH, TunnelsPart
from slurm_elastic.machine.hub.wire import Apply, HubAnswer, HubError, Message, PeerSeen
from slurm_elastic.machine.programs.tunnel import enrolment_key
from slurm_elastic.model.causes import Quoted
from slurm_elastic.model.cluster import Instance, InstanceState, Location, Market, Offer
from slurm_elastic.model.memory import Tunnel
from slurm_elastic.policies.repair.tunnel_addresses import TunnelPeer
from slurm_elastic.policies.repair.tunnel_addresses import enrolment_key as machine_key
from slurm_elastic.providers.aws.settings import AwsCloud
from slurm_elastic.providers.fake.provider import FakeProvider
from slurm_elastic.slurm.client.fake import FakeSlurm
from slurm_elastic.state.ledger import Health, Launch, Ledger, Machine
from tests.controller.world import Inline

AWS = AwsCloud(
    name="aws", location=Location.PUBLIC, region="r", image="ami-1",
    types={"c5": InstanceType(cpus=2, memory=4096, price=0.1)},
)  # fmt: skip
K1, K2, K3 = (base64.b64encode(bytes([n]) * 32).decode() for n in (1, 2, 3))
NETWORK = Network(endpoint="192.0.2.1:51820")


class Cloud(FakeProvider):
    """Shows what the test says that its machines have printed."""

    def __init__(self) -> None:
        self.name = "aws"
        self.printed: dict[str, str] = {}

    def console(self, instance: str) -> str:
        if instance not in self.printed:
            raise TransientError("aws", "Busy", "not yet")
        return self.printed[instance]


class Hub:
    """In place of root's part: what it was told last, and what it has in."""

    def __init__(self) -> None:
        self.peers: tuple[TunnelPeer, ...] = ()
        self.told = 0
        self.away = ""
        self.handshake = 0
        self.left_out: dict[str, str] = {}

    def __call__(self, message: Message) -> HubAnswer:
        if self.away:
            raise HubError(self.away)
        if isinstance(message, Apply):
            self.told += 1
            self.peers = message.peers
        now = self.handshake or int(time.time())
        seen = [
            PeerSeen(key=p.key, addresses=(f"{p.address}/32",), handshake=now, live=p.live)
            for p in self.peers
        ]
        keys = [p.key for p in self.peers if p.key]
        assert len(set(keys)) == len(keys)
        assert len({p.address for p in self.peers}) == len(self.peers)
        return HubAnswer(
            ok=True,
            peers=tuple(s for s in seen if s.key),
            plain=tuple(p.address for p in self.peers if not p.key),
            left_out=self.left_out,
        )


class Readers(Inline):
    """Threads that are all at work: what they are given is over when the test says so."""

    def __init__(self) -> None:
        self.reads: list[Future[None]] = []
        self.ended: list[dict[str, bool]] = []

    def submit(self, *_: object, **__: object) -> Future[None]:
        self.reads.append(Future())
        return self.reads[-1]

    def shutdown(self, **how: bool) -> None:
        self.ended.append(how)


class Bed:
    def __init__(
        self, path: Path, network: Network = NETWORK, desk: FakeDesk | None = None
    ) -> None:
        self.path, self.network, self.hub, self.cloud = path, network, Hub(), Cloud()
        self.clock = self.now = time.time()
        self.ledger = Ledger(path / "ledger.db")
        self.ledger.machines.record_whole_list("aws", self.now)
        self.desk = desk
        self.open()

    def open(self, **of: Any) -> None:
        """As after a start of the daemon; ``of``: of its Tunnels."""
        config = Config(
            cluster=Cluster(name="c", uuid="u"), clouds=(AWS,), state_dir=str(self.path),
            pools=(PoolSettings(name="pub", cloud="aws", nodes="pub[1-4]", cpus=2, memory=4096),),
            join=Join(head="10.99.0.1", network=self.network),
        )  # fmt: skip
        site = Site.of(config, FakeSlurm(), self.ledger, {"aws": self.cloud}, lambda: self.now)
        self.site = site_with(site, lambda: self.clock)
        self.addresses = node_addresses(config)
        of = {"hub": self.hub, "desk": self.desk, "pause": 0.0, **of}
        self.tunnels = TunnelsPart(self.site, self.network, Inline(), **of)

    def reopen(self, **of: Any) -> None:
        """With other readers, say."""
        self.tunnels.close()
        self.open(**of)

    def lose_ledger(self) -> None:
        """The daemon starts with an empty one: it has asked no cloud for its machines yet."""
        self.close()
        (self.path / "ledger.db").rename(self.path / "lost.db")
        (self.path / "journal").rename(self.path / "lost")
        self.ledger = Ledger(self.path / "ledger.db")
        self.open()

    def close(self) -> None:
        self.tunnels.close()
        self.ledger.close()

    def machine(self, node: str = "pub1", ident: str = "") -> Instance:
        one = Instance(
            id=ident or f"i-{node}", cloud="aws", node=node, generation=new_generation(self.now),
            instance_type="c5", zone="z", market=Market.SPOT, price=0.1,
            state=InstanceState.RUNNING, launched=self.now, address="10.0.0.5",
        )  # fmt: skip
        self.ledger.machines.adopt(replace(one, address=None), "pub", self.now)
        return one

    def prints(self, one: Instance, key: str) -> None:
        text = (
            f"[ 3.1] boot\r\nslurm-elastic-tunnel-key {one.generation} {one.node} {key}\r\nlogin:"
        )
        self.cloud.printed[one.id] = text

    def until(self, condition: Callable[[], object]) -> None:
        def look() -> bool:
            self.tunnels.look()
            return bool(condition())

        eventually(look)

    def admitted(self) -> set[tuple[str, bool]]:
        return {(p.key, p.live) for p in self.hub.peers}

    def kinds(self, node: str = "pub1") -> list[str]:
        return [d.kind for d in self.ledger.decisions.about(node)]


def site_with(site: Site, monotonic: Callable[[], float]) -> Site:
    return dataclasses.replace(site, monotonic=monotonic)


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[Bed]:
    made = Bed(tmp_path)
    yield made
    made.close()


@pytest.fixture
def walled(tmp_path: Path) -> Iterator[Bed]:
    """Without a tunnel: the hub has a firewall alone."""
    made = Bed(tmp_path, Network(kind=NetworkKind.NONE, firewall=Firewall.NFTABLES))
    yield made
    made.close()


def _started(bed: Bed) -> Callable[[str, list[Instance]], tuple[Instance, ...]]:
    """The daemon starts again. How it takes in a cloud's list."""
    extensions = tunnels.join(bed.site)
    assert extensions is not None
    (note,) = extensions.complete_listed
    (_, make) = extensions.parts[0]
    part = make(Inline())
    assert isinstance(part, TunnelsPart)
    part.close()
    bed.reopen(outside=part._outside)
    return note


def test_the_firewall_lets_a_machine_in_at_its_public_address_from_its_first_list_on(
    walled: Bed,
) -> None:
    """A router of the cloud gives it that address on the way to the head."""
    note = _started(walled)
    one = replace(walled.machine(), public_address="203.0.113.9")
    both = {one.address, one.public_address}
    walled.ledger.machines.observe("aws", note("aws", [one]), walled.now)
    walled.tunnels.look()
    assert {p.address for p in walled.hub.peers} == both
    note = _started(walled)
    walled.tunnels.look()
    assert {p.address for p in walled.hub.peers} == both, "the cloud has not listed it yet"
    note("aws", [replace(one, public_address="203.0.113.10")])
    walled.tunnels.look()
    assert {p.address for p in walled.hub.peers} == {one.address, "203.0.113.10"}
    walled.ledger.machines.record_ending("aws", [one.id], Quoted(text="idle"), walled.now)
    walled.tunnels.look()
    assert walled.hub.peers == ()


def test_a_key_on_the_console_lets_a_machine_in_under_its_address(bed: Bed) -> None:
    one = bed.machine()
    bed.tunnels.look()
    assert bed.hub.peers == ()
    bed.prints(one, K1)
    bed.until(lambda: bed.admitted() == {(K1, True)})
    (peer,), (machine,) = bed.hub.peers, bed.ledger.machines.live()
    assert machine.instance.address == peer.address
    (seen,) = in_tunnel(bed.site, "aws", [one])
    assert seen.address == peer.address, "what the cloud says of addresses counts no more"
    bed.until(lambda: bed.kinds() == ["enrolled"])


def test_a_head_that_opens_the_tunnels_calls_machines_where_their_cloud_lists_them(
    tmp_path: Path,
) -> None:
    bed = Bed(tmp_path, Network(opened_by=Opener.HEAD, udp_port=4500, routes=("10.7.0.0/16",)))
    note = _started(bed)

    def listed(one: Instance) -> None:
        for step in (partial(in_tunnel, bed.site), note):
            (one,) = step("aws", [one])

    def endpoints() -> list[str]:
        return [peer.endpoint for peer in bed.hub.peers]

    one = bed.machine()
    bed.prints(one, K1)
    bed.until(lambda: endpoints() == [""])  # it is admitted, and no list has shown it yet
    listed(one)
    bed.until(lambda: endpoints() == ["10.0.0.5:4500"])  # without a public address
    listed(replace(one, public_address="192.0.2.9"))
    bed.until(lambda: endpoints() == ["192.0.2.9:4500"])
    listed(replace(one, public_address="10.7.0.9"))
    bed.until(lambda: endpoints() == [""])  # the tunnel itself leads there
    listed(replace(one, public_address="192.0.2.9"))
    bed.until(lambda: endpoints() == ["192.0.2.9:4500"])
    bed.close()


def test_a_console_that_fails_in_an_unknown_way_keeps_no_other_machine_out(
    bed: Bed, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = bed.machine("pub1"), bed.machine("pub2")
    bed.prints(second, K2)
    real = bed.cloud.console

    def console(instance: str) -> str:
        if instance == first.id:
            raise RuntimeError("nobody thought of that")
        return real(instance)

    with monkeypatch.context() as patched:
        patched.setattr(bed.cloud, "console", console)
        bed.until(lambda: bed.admitted() == {(K2, True)})
        bed.until(lambda: "console not read id=i-pub1" in caplog.text)
    bed.prints(first, K1)
    bed.until(lambda: bed.admitted() == {(K1, True), (K2, True)})


def test_a_cloud_without_consoles_is_told_of_once(
    bed: Bed, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    bed.site.providers["aws"] = object()  # type: ignore[index]
    bed.machine()
    said = "node=pub1 reason=cloud aws does not show what its machines print"
    bed.until(lambda: said in caplog.text)
    for _ in range(3):
        bed.tunnels.look()
    bed.tunnels.close()
    assert caplog.text.count(said) == 1


def test_a_machine_that_is_adopted_meanwhile_is_not_shut_out(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its cloud was read whole after the first look at the ledger: both are of one moment."""
    one = bed.machine()
    bed.prints(one, K1)
    bed.until(lambda: bed.admitted() == {(K1, True)})
    bed.lose_ledger()
    done: list[bool] = []

    def then(read: Callable[[], Any]) -> Callable[[], Any]:
        def reading() -> Any:
            found = read()
            if not done:
                done.append(True)
                bed.ledger.machines.adopt(one, "pub", bed.now)
                bed.ledger.machines.record_whole_list("aws", bed.now)
            return found

        return reading

    monkeypatch.setattr(bed.ledger, "state", then(bed.ledger.state))
    monkeypatch.setattr(bed.ledger.machines, "clouds_read", then(bed.ledger.machines.clouds_read))
    assert bed.tunnels.apply()
    assert (K1, True) in bed.admitted()


def test_a_hub_that_answers_again_is_reported_whatever_threads_asked_it_at_once(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = bed.tunnels._lock = Watched()  # type: ignore[assignment]
    bed.hub.away = "the hub is away"
    assert not bed.tunnels.apply()
    bed.hub.away = ""

    def fail() -> None:
        raise HubError("the hub is full")

    other, report = (
        Meanwhile(lock, lambda: bed.tunnels._report_trouble(fail)),
        bed.ledger.health.report,
    )

    def reported(health: Health) -> None:
        report(health)
        other()

    monkeypatch.setattr(bed.ledger.health, "report", reported)
    assert bed.tunnels.apply()
    other.end()
    assert bed.tunnels.apply()
    assert [h.error for h in bed.ledger.health.all() if h.name == HEALTH] == [None]


def test_before_it_has_enrolled_a_machine_is_nowhere(bed: Bed) -> None:
    (seen,) = in_tunnel(bed.site, "aws", [bed.machine()])
    assert seen.address is None
    assert in_tunnel(bed.site, "onprem", [bed.machine("pub2")])[0].address == "10.0.0.5"


def test_a_machine_whose_end_is_decided_is_dropped_with_the_next_look(bed: Bed) -> None:
    one = bed.machine()
    bed.prints(one, K1)
    bed.until(lambda: bed.hub.peers)
    bed.ledger.machines.record_ending("aws", [one.id], Quoted(text="suspended by Slurm"), bed.now)
    bed.tunnels.look()
    assert bed.hub.peers == ()
    assert bed.ledger.tunnels.all() == ()
    again = bed.machine(ident="i-again")
    bed.prints(again, K1)
    bed.until(lambda: bed.admitted() == {(K1, True)})


@pytest.mark.parametrize("kind", ["bed", "once"])
def test_a_machine_that_a_list_has_as_stopped_by_mistake_stays_in_with_its_key(
    request: pytest.FixtureRequest, kind: str
) -> None:
    there: Bed = request.getfixturevalue(kind)
    one = there.machine()
    there.ledger.tunnels.enrol(tunnel_of(there, one, K1))
    there.tunnels.look()
    for state in (InstanceState.STOPPED, InstanceState.RUNNING):
        there.ledger.machines.observe("aws", [replace(one, state=state, address=None)], there.now)
        there.tunnels.look()
        assert there.admitted() == {(K1, True)}
        assert len(there.ledger.tunnels.all()) == 1


@pytest.mark.parametrize("kind", ["bed", "once"])
def test_a_machine_that_is_stopped_is_out_and_in_again_when_it_is_started(
    request: pytest.FixtureRequest, kind: str
) -> None:
    """Its disk has its key still; nobody else is let in by it meanwhile, nor after."""
    there: Bed = request.getfixturevalue(kind)
    one = there.machine()
    there.ledger.tunnels.enrol(tunnel_of(there, one, K1))
    there.tunnels.look()
    assert (K1, True) in there.admitted()
    stop(there, one)
    assert there.admitted() == set()
    assert there.ledger.tunnels.all() == ()
    there.open()  # the daemon is another by then
    there.tunnels.look()
    assert there.admitted() == set()
    (stopped,) = there.ledger.stops.machines()
    started = start(there, stopped)
    there.tunnels.look()
    assert (K1, True) in there.admitted()
    assert len(there.hub.peers) == 1
    assert started.instance.generation != one.generation
    (seen,) = in_tunnel(there.site, "aws", [one])
    assert seen.address == there.hub.peers[0].address, "its cloud tells its first generation"
    stop(there, started.instance)
    assert there.admitted() == set()
    there.ledger.stops.record_ending_of_stopped("aws", [one.id], Quoted(text="too old"), there.now)
    there.tunnels.look()
    assert (there.admitted(), there.ledger.tunnels.all()) == (set(), ())


def test_a_key_of_before_its_stop_is_no_other_machines(bed: Bed) -> None:
    """A fresh machine of its node has its place, and its own key, meanwhile."""
    one = bed.machine()
    bed.ledger.tunnels.enrol(tunnel_of(bed, one, K1))
    stop(bed, one)
    fresh = bed.machine(ident="i-fresh")
    bed.prints(fresh, K2)
    bed.until(lambda: bed.admitted() == {(K2, True)})
    (stopped,) = bed.ledger.stops.machines()
    started = start(bed, stopped)
    bed.tunnels.look()
    assert bed.admitted() == {(K2, True)}, "at its address another machine is in yet"
    bed.ledger.machines.record_ending("aws", [fresh.id], Quoted(text="suspended by Slurm"), bed.now)
    bed.until(lambda: bed.admitted() == {(K1, True)})
    (row,) = bed.ledger.tunnels.all()
    assert row.generation == started.instance.generation


def tunnel_of(bed: Bed, one: Instance, key: str) -> Tunnel:
    return Tunnel(
        generation=one.generation, node=one.node, address=node_addresses(bed.site.config)[one.node],
        key=key, since=bed.now,
    )  # fmt: skip


def stop(bed: Bed, one: Instance) -> None:
    """As an idle one is, step by step: nobody is let in after the first."""
    bed.ledger.stops.record_stopping("aws", [one.id], Quoted(text="idle"), bed.now)
    bed.tunnels.look()
    bed.ledger.stops.record_stopped("aws", {one.id: 0.0}, bed.now)
    bed.tunnels.look()


def start(bed: Bed, machine: Machine) -> Machine:
    one = machine.instance
    offer = Offer(
        cloud="aws", location=Location.PUBLIC, zone=one.zone, instance_type=one.instance_type,
        market=one.market, price=one.price, cpus=2, memory=4096,
    )  # fmt: skip
    launch = Launch(
        generation=new_generation(bed.now + 60), request="r", pool="pub", cloud="aws", jobs=(),
        nodes=(one.node,), offer=offer, created=bed.now,
    )  # fmt: skip
    started = bed.ledger.stops.record_start(launch, machine, bed.now)
    assert started is not None
    return started


def test_a_row_is_forgotten_only_after_the_hub_has_dropped_its_peer(bed: Bed) -> None:
    one = bed.machine()
    bed.prints(one, K1)
    bed.until(lambda: bed.hub.peers)
    bed.ledger.machines.record_ending("aws", [one.id], Quoted(text="suspended by Slurm"), bed.now)
    bed.hub.away = "the hub is away"
    bed.tunnels.look()
    assert len(bed.ledger.tunnels.all()) == 1
    (health,) = [h for h in bed.ledger.health.all() if h.name == HEALTH]
    assert health.error == "the hub is away"
    bed.hub.away = ""
    bed.tunnels.look()
    assert (bed.hub.peers, bed.ledger.tunnels.all()) == ((), ())
    assert [h.error for h in bed.ledger.health.all() if h.name == HEALTH] == [None]


def test_after_a_restart_of_either_service_peers_are_those_of_live_machines(bed: Bed) -> None:
    for node, key in (("pub1", K1), ("pub2", K2)):
        bed.prints(bed.machine(node), key)
    bed.until(lambda: bed.admitted() == {(K1, True), (K2, True)})
    bed.hub.peers = (TunnelPeer(address="10.99.0.77", key=K3),)  # whoever that is
    bed.tunnels.close()
    bed.open()
    bed.tunnels.look()
    assert bed.admitted() == {(K1, True), (K2, True)}
    bed.hub.peers = ()  # the hub has lost all
    bed.clock += bed.site.config.timings.reconcile_interval + 1
    bed.tunnels.look()
    assert bed.admitted() == {(K1, True), (K2, True)}


def test_nothing_is_asked_of_the_hub_where_nothing_changes(bed: Bed) -> None:
    bed.tunnels.look()
    told = bed.hub.told
    for _ in range(5):
        bed.tunnels.look()
    assert bed.hub.told == told == 1


def test_a_key_is_one_machines(bed: Bed) -> None:
    one, other = bed.machine("pub1"), bed.machine("pub2")
    bed.prints(one, K1)
    bed.until(lambda: bed.admitted() == {(K1, True)})
    bed.prints(other, K1)
    bed.until(lambda: "not-enrolled" in bed.kinds("pub2"))
    bed.prints(one, K3)  # nor does a machine change its own
    bed.tunnels.look()
    assert bed.admitted() == {(K1, True)}


def test_with_a_lost_ledger_machines_stay_in(bed: Bed) -> None:
    one = bed.machine()
    bed.prints(one, K1)
    bed.until(lambda: bed.hub.peers)
    bed.cloud.printed.clear()  # consoles are short
    bed.lose_ledger()
    bed.tunnels.look()
    assert bed.admitted() == {(K1, True)}, "nobody has asked the cloud yet"
    bed.ledger.machines.adopt(replace(one, address=None), "pub", bed.now)
    bed.ledger.machines.record_whole_list("aws", bed.now)
    bed.tunnels.look()
    assert bed.admitted() == {(K1, True)}
    assert [t.node for t in bed.ledger.tunnels.all()] == ["pub1"]


@pytest.mark.parametrize(
    ("said", "key"),
    [
        ("slurm-elastic-tunnel-key g1 pub1 {0}", K1),
        ("slurm-elastic-tunnel-key g1 pub2 {0}", ""),
        ("slurm-elastic-tunnel-key g2 pub1 {0}", ""),
        ("slurm-elastic-tunnel-key g1 pub1 {0}x", K1),
        ("slurm-elastic-tunnel-key g1 pub1 AAAA", ""),
        ("", ""),
    ],
)
def test_only_the_machines_own_line_counts(bed: Bed, said: str, key: str) -> None:
    one = replace(bed.machine(), generation="g1")
    assert printed_key(said.format(K1), one) == key


def test_a_hub_that_is_away_is_told_of_once_in_the_log_and_in_the_status(
    bed: Bed, caplog: pytest.LogCaptureFixture
) -> None:
    bed.hub.away = "the hub is away"
    first = bed.now
    for _ in range(3):
        bed.tunnels.look()
        bed.now += 1
    assert [(r.levelname, r.getMessage()) for r in caplog.records] == [("ERROR", "the hub is away")]
    (health,) = [h for h in bed.ledger.health.all() if h.name == HEALTH]
    assert (health.error, health.code, health.checked) == ("the hub is away", "network", first)
    bed.hub.away = "the hub has no room"
    bed.tunnels.look()
    assert caplog.records[-1].getMessage() == "the hub has no room"
    bed.hub.away = ""
    bed.tunnels.look()
    (health,) = [h for h in bed.ledger.health.all() if h.name == HEALTH]
    assert (health.error, health.code) == (None, None)
    assert len(caplog.records) == 2


def test_the_hub_is_told_anew_with_each_round_of_repair(bed: Bed) -> None:
    bed.tunnels.look()
    bed.clock += bed.site.config.timings.reconcile_interval - 1
    bed.tunnels.look()
    assert bed.hub.told == 1
    bed.clock += 1
    bed.tunnels.look()
    assert bed.hub.told == 2


def test_a_console_is_read_every_two_seconds_and_never_twice_at_once(bed: Bed) -> None:
    readers = Readers()
    made = TunnelsPart(bed.site, NETWORK, Inline(), hub=bed.hub, readers=readers)  # type: ignore[arg-type]
    bed.machine()
    reads = readers.reads

    def looks(seconds: float) -> int:
        bed.clock += seconds
        made.look()
        return len(reads)

    assert (looks(0), looks(100)) == (1, 1), "the first read is not over"
    reads[0].set_result(None)
    assert (looks(0), looks(1.5), looks(0.5)) == (2, 2, 2), "the second one is not over"
    reads[1].set_result(None)
    assert looks(0) == 3
    reads[2].set_result(None)
    assert (looks(1.5), looks(0.5)) == (3, 4), "two seconds after the last one began"


def test_a_read_that_is_not_over_is_known_until_it_is_though_its_machine_is_gone(bed: Bed) -> None:
    readers = Readers()
    bed.reopen(readers=readers)
    one = bed.machine()
    bed.tunnels.look()
    bed.ledger.machines.record_end("aws", [one.id], Quoted(text="not listed"), bed.now)
    bed.tunnels.look()
    bed.machine()
    bed.tunnels.look()
    assert len(readers.reads) == 1, "it is back, and its console is being read still"
    readers.reads[0].set_result(None)
    bed.tunnels.look()
    assert len(readers.reads) == 2


def test_it_looks_twice_a_second_and_at_ten_consoles_at_once(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[float] = []
    threads: list[int] = []

    def pool(count: int, **_: object) -> Readers:
        threads.append(count)
        return Readers()

    monkeypatch.setattr(tunnels, "ThreadPoolExecutor", pool)
    monkeypatch.setattr(TunnelsPart, "look", lambda _: looks.append(bed.clock))
    bed.clock = 1000.0
    made = TunnelsPart(bed.site, NETWORK, Inline(), hub=bed.hub)  # type: ignore[arg-type]
    for _ in range(9):
        made.task.tick()
        bed.clock += 0.25
    assert looks == [1000.0, 1000.5, 1001.0, 1001.5, 1002.0]
    assert threads == [10]


def test_closing_waits_for_a_console_that_is_read_and_reads_no_other(bed: Bed) -> None:
    readers = Readers()
    bed.reopen(readers=readers)
    bed.tunnels.close()
    assert readers.ended == [{"wait": True, "cancel_futures": True}]


@pytest.mark.parametrize(
    ("before", "live", "learnt"), [(180, True, True), (181, True, False), (0, False, False)]
)
def test_with_a_lost_ledger_only_peers_that_were_heard_of_lately_are_believed(
    bed: Bed, before: int, live: bool, learnt: bool
) -> None:
    bed.now = float(int(bed.now))
    bed.hub.handshake = int(bed.now) - before
    one = bed.machine()
    address = bed.addresses[one.node]
    bed.hub.peers = (TunnelPeer(address=address, key=K1, live=live),)
    bed.tunnels.look()
    assert [t.key for t in bed.ledger.tunnels.all()] == ([K1] if learnt else [])


def test_with_a_lost_ledger_a_key_of_another_machines_row_is_not_believed(bed: Bed) -> None:
    one, other = bed.machine("pub1"), bed.machine("pub2")
    place = bed.addresses
    known = Tunnel(
        generation=other.generation, node="pub2", address=place["pub2"], key=K1, since=bed.now
    )
    assert not bed.ledger.tunnels.enrol(known)
    bed.hub.peers = (TunnelPeer(address=place[one.node], key=K1),)
    bed.tunnels.look()
    assert bed.kinds("pub1") == []
    assert [t.node for t in bed.ledger.tunnels.all()] == ["pub2"]


def test_while_a_cloud_is_not_learnt_nobody_stays_in_at_the_place_or_by_the_key_of_another(
    bed: Bed,
) -> None:
    bed.lose_ledger()
    one = bed.machine()
    address = bed.addresses[one.node]
    bed.ledger.tunnels.enrol(
        Tunnel(generation=one.generation, node=one.node, address=address, key=K1, since=bed.now)
    )
    bed.hub.peers = (TunnelPeer(address=address, key=K2), TunnelPeer(address="10.99.0.78", key=K3))
    bed.tunnels.look()
    assert {(p.address, p.key) for p in bed.hub.peers} == {(address, K1), ("10.99.0.78", K3)}
    bed.hub.peers = (TunnelPeer(address="10.99.0.77", key=K1),)
    bed.clock += bed.site.config.timings.reconcile_interval
    bed.tunnels.look()
    assert {(p.address, p.key) for p in bed.hub.peers} == {(address, K1)}


def test_with_a_lost_ledger_machines_without_a_tunnel_stay_in_but_those_that_end(
    walled: Bed,
) -> None:
    walled.lose_ledger()
    walled.hub.peers = (TunnelPeer(address="10.0.0.5"), TunnelPeer(address="10.0.0.6"))
    walled.tunnels.look()
    assert [p.address for p in walled.hub.peers] == ["10.0.0.5", "10.0.0.6"]
    one, other = walled.machine(), replace(walled.machine("pub2"), address="10.0.0.6")
    walled.ledger.machines.observe("aws", [one, other], walled.now)
    walled.ledger.machines.record_ending("aws", [one.id], Quoted(text="idle"), walled.now)
    walled.tunnels.look()
    assert [p.address for p in walled.hub.peers] == ["10.0.0.6"], "its end is decided"
    walled.ledger.machines.record_end("aws", [other.id], Quoted(text="not listed"), walled.now)
    walled.tunnels.look()
    assert walled.hub.peers == ()
    walled.hub.peers = (TunnelPeer(address="10.0.0.7"),)
    walled.clock += walled.site.config.timings.reconcile_interval
    walled.tunnels.look()
    assert [p.address for p in walled.hub.peers] == ["10.0.0.7"], "nobody knows it yet"
    walled.ledger.machines.record_whole_list("aws", walled.now)
    walled.tunnels.look()
    assert walled.hub.peers == ()


def test_a_machine_that_is_learnt_of_while_the_hub_is_told_stays_in(
    walled: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    walled.lose_ledger()
    walled.hub.peers = (TunnelPeer(address="10.0.0.5"),)
    rows = walled.ledger.tunnels.all

    def learnt_meanwhile() -> tuple[Tunnel, ...]:
        """Once the machines have been read."""
        walled.ledger.machines.observe("aws", [walled.machine()], walled.now)
        walled.ledger.machines.record_whole_list("aws", walled.now)
        return rows()

    monkeypatch.setattr(walled.ledger.tunnels, "all", learnt_meanwhile)
    assert walled.tunnels.apply()
    assert [p.address for p in walled.hub.peers] == ["10.0.0.5"]


def test_who_enrols_and_whose_key_is_not_believed_is_in_the_log(
    bed: Bed, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    bed.prints(bed.machine("pub1"), K1)
    bed.until(lambda: bed.admitted() == {(K1, True)})
    address = bed.hub.peers[0].address
    bed.until(lambda: f"enrolled node=pub1 address={address} key={K1}" in caplog.text)
    bed.prints(bed.machine("pub2"), K1)
    bed.until(lambda: "not-enrolled" in bed.kinds("pub2"))
    (wrong,) = [r for r in caplog.records if r.getMessage().startswith("not enrolled node=pub2")]
    assert wrong.levelname == "ERROR"
    assert "its key is not believed" in wrong.getMessage()


def test_a_console_that_cannot_be_read_yet_is_no_news_for_explain(
    bed: Bed, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    bed.machine()
    bed.until(lambda: "not enrolled node=pub1 reason=i-pub1" in caplog.text)
    assert {r.levelname for r in caplog.records} == {"INFO"}
    assert bed.kinds() == []


def test_only_the_end_of_a_console_is_looked_at_and_there_the_last_key_counts(bed: Bed) -> None:
    one = replace(bed.machine(), generation="g1")
    first, last = (f"slurm-elastic-tunnel-key g1 pub1 {key}" for key in (K1, K2))
    assert printed_key(f"{first}\n{last}\n", one) == K2
    room = 256 * 1024 - len(first)
    assert printed_key(first + "." * room, one) == K1
    assert printed_key(first + "." * (room + 1), one) == ""


def test_closing_ends_the_desk(once: Bed) -> None:
    once.tunnels.look()
    assert isinstance(once.desk, FakeDesk)
    assert once.desk.is_open
    once.tunnels.close()
    assert not once.desk.is_open


def test_where_keys_are_handed_in_no_console_is_read(once: Bed) -> None:
    readers = Readers()
    once.reopen(readers=readers)
    one = once.machine()
    once.prints(one, K1)
    once.tunnels.look()
    assert readers.reads == []
    assert once.ledger.tunnels.all() == ()


def test_a_key_that_comes_while_the_hub_is_away_is_told_so_and_lets_in_later(
    once: Bed, caplog: pytest.LogCaptureFixture
) -> None:
    once.machine()
    once.tunnels.look()
    (peer,) = once.hub.peers
    assert once.tunnels.handed_in("10.99.0.250", K2) == "refused"
    assert "refused a key from an address that may not enrol address=10.99.0.250" in caplog.text
    once.hub.away = "the hub is away"
    assert once.tunnels.handed_in(peer.address, K1) == "not now"
    once.hub.away = ""
    once.tunnels.look()
    assert once.admitted() == {(K1, True)}


def test_a_key_that_is_another_machines_is_refused_at_the_desk(once: Bed) -> None:
    for node in ("pub1", "pub2"):
        once.machine(node)
    once.tunnels.look()
    first, second = (once.addresses[node] for node in ("pub1", "pub2"))
    assert once.tunnels.handed_in(first, K1) == ""
    assert once.tunnels.handed_in(second, K1) == "refused"
    assert once.kinds("pub2") == ["not-enrolled"]


@pytest.mark.parametrize(("enrol", "place"), [(Enrol.ONCE, "10.99.0.1"), (Enrol.CONSOLE, None)])
def test_a_desk_is_where_keys_are_handed_in(bed: Bed, enrol: Enrol, place: str | None) -> None:
    network = Network(endpoint="192.0.2.1:51820", enrol=enrol)
    made = TunnelsPart(bed.site, network, Inline(), hub=bed.hub)  # type: ignore[arg-type]
    assert (made.desk and made.desk.place) == (place and (place, 51821))
    made.close()


# keys that are good for enrolling only


class Taken:
    def __init__(self) -> None:
        self.handed: list[tuple[str, str]] = []

    def __call__(self, address: str, key: str) -> str:
        self.handed.append((address, key))
        return ""


@pytest.fixture
def once(tmp_path: Path) -> Iterator[Bed]:
    network = Network(endpoint="192.0.2.1:51820", enrol=Enrol.ONCE)
    made = Bed(tmp_path, network, FakeDesk(tmp_path))
    yield made
    made.close()


class FakeDesk:
    """Without a socket and wg(8)."""

    def __init__(self, state: Path) -> None:
        self._state = state
        self.is_open = False

    def public_key(self, generation: str, node: str) -> str:
        return machine_key(word_of(self._state, generation), node)

    def open(self) -> None:
        self.is_open = True

    def close(self) -> None:
        self.is_open = False


def test_a_one_shot_key_is_dead_after_its_use_and_after_ten_minutes(once: Bed) -> None:
    one = once.machine()
    once.tunnels.look()
    ((_, live),) = once.admitted()
    assert not live
    (peer,) = once.hub.peers
    assert once.tunnels.handed_in("10.99.0.250", K2) == "refused"
    assert once.tunnels.handed_in(peer.address, K1) == ""
    assert once.admitted() == {(K1, True)}, "the hub has swapped them before the answer"
    assert once.tunnels.handed_in(peer.address, K2) == "refused", "it was used"
    late = once.machine("pub2")
    once.tunnels.look()
    assert len(once.hub.peers) == 2
    once.now += 601
    once.tunnels.look()
    assert once.admitted() == {(K1, True)}
    assert (one.node, late.node) == ("pub1", "pub2")


def test_with_a_lost_ledger_who_has_yet_to_enrol_reaches_no_more_than_before(once: Bed) -> None:
    one = once.machine()
    once.tunnels.look()
    ((key, live),) = once.admitted()
    assert not live
    once.lose_ledger()
    once.tunnels.look()
    assert once.admitted() == {(key, False)}, "nobody has asked the cloud yet"
    once.ledger.machines.adopt(replace(one, address=None), "pub", once.now)
    once.tunnels.look()
    assert once.admitted() == {(key, False)}
    once.ledger.machines.record_whole_list("aws", once.now)
    once.tunnels.look()
    assert once.admitted() == {(key, False)}
    assert once.ledger.tunnels.all() == (), (
        "a key that all users of the machine can make is not its own"
    )
    assert once.tunnels.handed_in(once.hub.peers[0].address, K1) == ""
    assert once.admitted() == {(K1, True)}


def test_of_two_launches_for_one_node_the_later_one_may_enrol(once: Bed) -> None:
    once.machine()
    once.now += 30
    late = once.machine(ident="i-late")
    once.tunnels.look()
    (peer,) = once.hub.peers
    assert peer.key == FakeDesk(once.path).public_key(late.generation, late.node)


def test_of_machines_that_are_gone_nothing_is_kept(
    bed: Bed, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    reads: list[weakref.ref[Future[None]]] = []

    class Done(Inline):
        def submit(self, *of: Any, **more: Any) -> Future[Any]:
            read = super().submit(*of, **more)
            reads.append(weakref.ref(read))
            return read

    bed.reopen(readers=Done(), pause=1e9)

    def told() -> int:
        bed.tunnels.look()
        return caplog.text.count("not enrolled node=pub1 reason=i-pub1")

    one = bed.machine()
    assert (told(), told(), len(reads)) == (1, 1, 1)
    assert reads[0]() is not None
    bed.ledger.machines.record_end("aws", [one.id], Quoted(text="not listed"), bed.now)
    assert told() == 1
    gc.collect()
    assert reads[0]() is None
    bed.machine()
    assert (told(), len(reads)) == (2, 2), "as if it had never been there"


def test_a_secret_that_was_not_finished_is_in_nobodys_way(tmp_path: Path) -> None:
    (tmp_path / f".enrolment.secret.{os.getpid()}").write_text("half")
    with ThreadPoolExecutor(8) as threads:
        words = set(threads.map(lambda _: word_of(tmp_path, "g1"), range(64)))
    assert words == {word_of(tmp_path, "g1")}


def test_the_word_of_a_launch_is_the_same_again_and_of_no_other(once: Bed, tmp_path: Path) -> None:
    word = enrolment_word(once.site, "aws", "g1")
    assert word == enrolment_word(once.site, "aws", "g1") != enrolment_word(once.site, "aws", "g2")
    assert machine_key(word, "pub1") == enrolment_key(word, "pub1") != machine_key(word, "pub2")
    secret = once.path / "enrolment.secret"
    assert secret.stat().st_mode & 0o077 == 0
    assert len(set(secret.read_bytes())) > 8
    assert len(secret.read_bytes()) == 32


def test_the_secret_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[bytes] = []

    def sync(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}")
        if path.is_file():
            synced.append(path.read_bytes())
            assert not (tmp_path / "enrolment.secret").exists()

    monkeypatch.setattr(os, "fsync", sync)
    word_of(tmp_path, "g1")
    assert synced == [(tmp_path / "enrolment.secret").read_bytes()]


@pytest.mark.parametrize(
    "network",
    [None, replace(NETWORK, enrol=Enrol.ONCE, clouds=("elsewhere",)),
     replace(NETWORK, enrol=Enrol.CONSOLE)],
    ids=["no network", "no tunnel", "by the console"],
)  # fmt: skip
def test_who_does_not_enrol_by_a_word_is_told_none(once: Bed, network: Network | None) -> None:
    config = once.site.config
    config = replace(config, join=replace(config.join, network=network))
    site = dataclasses.replace(once.site, config=config, tunnelled=clouds_with_tunnel(config))
    assert enrolment_word(site, "aws", "g1") == ""


def test_the_desk_takes_a_key_and_nothing_else(tmp_path: Path) -> None:
    taken = Taken()
    with opened(tmp_path, taken) as place:
        for line, said in ((K1, "ok"), ("GET / HTTP/1.0", "no key"), ("x" * 500, "no key")):
            assert _asked(place, line) == said
    assert taken.handed == [("127.0.0.1", K1)]


def test_a_desk_whose_place_is_taken_opens_when_it_is_free(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        desk = Desk(tmp_path, "127.0.0.1", Taken(), port=port)
        desk.open()
        desk.open()
        assert desk.port is None
        (told,) = [r.getMessage() for r in caplog.records]  # once
        assert "machines cannot enrol yet" in told
    desk.open()
    try:
        assert desk.port == port
        assert _asked(("127.0.0.1", port), K1) == "ok"
    finally:
        desk.close()


def test_whoever_drips_has_five_seconds_and_keeps_nobody_from_the_desk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert enrolment.LINE_TIMEOUT_S == 5.0
    monkeypatch.setattr(enrolment, "LINE_TIMEOUT_S", 0.5)
    with opened(tmp_path, Taken()) as place, ExitStack() as stack:
        for _ in range(50):
            stack.enter_context(socket.create_connection(place, timeout=30))
        assert _asked(place, K1) == "ok"
        with socket.create_connection(place, timeout=0.1) as slow:
            assert _dripping(slow) == b"", "each byte is in time, the line is not"


@contextmanager
def opened(path: Path, taken: Taken) -> Iterator[tuple[str, int]]:
    desk = Desk(path, "127.0.0.1", taken, port=0)
    desk.open()
    try:
        yield "127.0.0.1", desk.port or 0
    finally:
        desk.close()


def test_the_desk_opens_before_the_head_has_its_address(tmp_path: Path) -> None:
    early = Desk(tmp_path, "192.0.2.77", Taken(), port=0)
    early.open()
    assert early.port
    early.close()


def test_the_desk_reads_as_long_a_line_as_sixty_four_bytes(tmp_path: Path) -> None:
    taken = Taken()
    with opened(tmp_path, taken) as place:
        for spaces, said in ((64 - len(K1) - 1, "ok"), (64 - len(K1), "no key")):
            assert _asked(place, K1 + " " * spaces) == said
    assert len(taken.handed) == 1


def test_public_parts_are_kept_of_a_hundred_thousand_machines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert enrolment.MAX_PUBLIC_KEYS == 100_000
    made: list[object] = []
    monkeypatch.setattr(enrolment, "MAX_PUBLIC_KEYS", 2)
    monkeypatch.setattr(enrolment, "run", lambda *_, **__: made.append("") or "public")
    desk = Desk(tmp_path, "127.0.0.1", Taken(), port=0)

    def asked(*nodes: str) -> int:
        for node in nodes:
            desk.public_key("g1", node)
        return len(made)

    assert asked("pub1", "pub2", "pub3") == 3
    assert asked("pub1", "pub2", "pub3") == 3, "all are kept"
    assert asked("pub4") == 4
    assert asked("pub1", "pub4") == 5, "pub4 alone was"


def test_the_public_part_of_a_key_is_made_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str | None] = []

    def run(*_: str, text: str | None = None) -> str:
        made.append(text)
        return "public\n"

    monkeypatch.setattr(enrolment, "run", run)
    desk = Desk(tmp_path, "127.0.0.1", Taken(), port=0)
    for node in ("pub1", "pub1", "pub2"):
        assert desk.public_key("g1", node) == "public"
    word = word_of(tmp_path, "g1")
    assert made == [machine_key(word, "pub1"), machine_key(word, "pub2")]


def _dripping(connection: socket.socket) -> bytes:
    while True:
        try:
            connection.sendall(b"A")
            return connection.recv(100)
        except TimeoutError:
            continue
        except (BrokenPipeError, ConnectionResetError):
            return b""


def _asked(place: tuple[str, int], line: str) -> str:
    with socket.create_connection(place, timeout=30) as connection:
        connection.sendall(line.encode() + b"\n")
        return connection.makefile().readline().strip()


def test_the_public_part_is_wgs(tmp_path: Path) -> None:
    desk = Desk(tmp_path, "127.0.0.1", Taken(), port=0)
    try:
        public = desk.public_key("g1", "pub1")
    except HubError as error:
        pytest.skip(str(error))
    private = machine_key(word_of(tmp_path, "g1"), "pub1")
    shown = subprocess.run(
        ["wg", "pubkey"], input=private, text=True, capture_output=True, check=True
    )
    assert public == shown.stdout.strip()
    known = Tunnel(generation="g1", node="pub1", address="10.99.0.8", key=public, since=0.0)
    assert len(known.key) == 44


def test_the_key_is_of_the_launch_whose_enrolment_key_the_hub_has(once: Bed) -> None:
    """A node may have an earlier launch without an answer, or a machine that has not ended yet."""
    early = once.machine()
    once.now += 30
    late = once.machine(ident="i-late")
    once.tunnels.look()
    (peer,) = once.hub.peers
    assert once.tunnels.handed_in(peer.address, K1) == ""
    assert [t.generation for t in once.ledger.tunnels.all()] == [late.generation]
    address = {m.instance.id: m.instance.address for m in once.ledger.machines.live()}
    assert address == {early.id: None, late.id: peer.address}
    once.ledger.machines.record_end("aws", [early.id], Quoted(text="x"), once.now)
    once.now += 600
    once.tunnels.look()
    assert once.admitted() == {(K1, True)}


def test_no_machine_has_the_enrolment_key_of_another_as_its_own(once: Bed) -> None:
    thief, sibling = once.machine("pub1"), once.machine("pub2")
    once.tunnels.look()
    assert once.desk is not None
    stolen = once.desk.public_key(sibling.generation, sibling.node)
    assert once.tunnels.handed_in(once.addresses[thief.node], stolen) == "refused"
    assert "not-enrolled" in once.kinds(thief.node)
    assert once.tunnels.handed_in(once.addresses[sibling.node], K2) == ""
    assert (K2, True) in once.admitted()


def test_a_machine_with_the_heads_own_key_is_refused(once: Bed, tmp_path: Path) -> None:
    (tmp_path / "wireguard.pub").write_text(f"{K3}\n")
    once.network = replace(once.network, public_key=str(tmp_path / "wireguard.pub"))
    once.reopen()
    one = once.machine()
    once.tunnels.look()
    assert once.tunnels.handed_in(once.addresses[one.node], K3) == "refused"
    assert once.tunnels.handed_in(once.addresses[one.node], K1) == ""


def test_a_key_that_wg_refuses_is_not_read_from_a_console(bed: Bed) -> None:
    one = bed.machine()
    # The same bytes for b64decode: only the unused bits of the last character differ.
    assert base64.b64decode(f"{K1[:42]}F=") == base64.b64decode(K1)
    bed.prints(one, f"{K1[:42]}F=")
    for _ in range(3):
        bed.tunnels.look()
    bed.reopen()
    assert bed.admitted() == set()
    bed.prints(one, K1)
    bed.until(lambda: bed.admitted() == {(K1, True)})


def test_a_machine_that_the_hub_leaves_out_is_logged_once(
    bed: Bed, caplog: pytest.LogCaptureFixture
) -> None:
    one = bed.machine()
    bed.prints(one, K1)
    address = bed.addresses[one.node]
    bed.hub.left_out = {address: "wg refuses it"}
    bed.until(lambda: bed.admitted() == {(K1, True)})
    bed.clock += 3600
    assert bed.tunnels.apply()
    said = f"the hub leaves a machine out address={address} reason=wg refuses it"
    assert caplog.text.count(said) == 1
