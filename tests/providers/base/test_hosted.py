"""Machines on hosts of the site's own: none twice, none of somebody else, ended ones kept a while."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from slurm_elastic.base.errors import AuthError, CapacityError, ProviderError, TransientError
from slurm_elastic.config.clouds import InstanceType
from slurm_elastic.model.cluster import (
    EndAnswer,
    Instance,
    InstanceState,
    LaunchSpec,
    Location,
    Market,
    Offer,
    Pool,
)
from slurm_elastic.providers.base import tags
from slurm_elastic.providers.base.hosts.host_rows import REMOVED_AT_ONCE, Tagged
from slurm_elastic.providers.base.hosts.hosted import HostedProvider, Room, room
from slurm_elastic.providers.base.hosts.hosted_cloud import HostedCloud, own_addresses
from slurm_elastic.providers.base.hosts.hosts import Hosts, deadline, until
from slurm_elastic.providers.base.ownership import Ownership
from slurm_elastic.testing.contract import CLUSTER, UUID

NODES = tuple(f"n{n}" for n in range(1, 9))
SMALL, LARGE = (InstanceType(cpus=n, memory=2048 * n, price=0.01 * n) for n in (2, 4))
TYPES = {"small": SMALL, "large": LARGE}
KEPT = 3600.0  # as people are told (docs/docker.md, docs/libvirt.md)
POOL = Pool(
    name="p", cloud="rack", nodes=NODES, cpus=2, real_memory=3000,
    markets=(Market.RESERVED, Market.SPOT),
)  # fmt: skip


class Plain(Hosts[str]):
    def _opened(self, host: str) -> str:
        return host

    def _close(self, connection: str) -> None: ...


class Rack(HostedProvider[InstanceType]):
    """Two hosts in memory. ``wrong`` says what goes wrong, by what is done and where; a machine is
    started after ``before_run``.
    """

    def __init__(self, owners: Ownership | None = None) -> None:
        self.now = 1000.0
        self.before_run: Callable[[], object] = lambda: None
        self.machines: list[Tagged] = []
        self.wrong: dict[tuple[str, str], Exception] = {}
        self.done: list[tuple[str, str]] = []
        self.size = (8, 16384)
        settings = HostedCloud(name="rack", location=Location.ON_PREMISES)
        mine = owners or Ownership(cluster=UUID, clouds=frozenset({"rack"}))
        hosts = Plain("rack", ("a", "b"), 60.0)
        super().__init__(settings, TYPES, CLUSTER, mine, hosts, lambda: self.now)
        self._threads = 2

    def there(self, node: str, host: str = "a", **fields: Any) -> Tagged:
        """A machine that is there already."""
        made = Instance(
            id=f"{node}@{host}", cloud="rack", node=node, generation="g1", instance_type="small",
            zone=host, market=Market.RESERVED, price=0.02, state=InstanceState.RUNNING,
            launched=1.0, address=None,
        )  # fmt: skip
        made = replace(
            made, **{k: v for k, v in fields.items() if k in ("state", "generation", "id")}
        )
        half, marks = fields.get("half", False), fields.get("tags", {tags.CLUSTER: UUID})
        one = Tagged(
            machine=made, name=made.id, host=host, unstarted=half, tags=marks,
            moved=fields.get("moved", False),
        )  # fmt: skip
        self.machines.append(one)
        return one

    def _note(self, what: str, about: str) -> None:
        assert deadline() is not None, "no call without a time-out"
        self.done.append((what, about))
        if (what, about) in self.wrong:
            raise self.wrong[what, about]

    def _rows(self, host: str) -> Sequence[Tagged]:
        self._note("rows", host)
        return [m for m in self.machines if m.host == host]

    def _all_ids(self, host: str) -> set[str]:
        return {machine.short for machine in self._rows(host)}

    def _room(
        self, host: str, types: Mapping[str, InstanceType], there: Sequence[Tagged]
    ) -> Mapping[str, Room]:
        live = [TYPES[m.machine.instance_type] for m in there if not m.ended]
        used = sum(k.cpus for k in live), sum(k.memory for k in live)
        return {name: room(kind, self.size, used) for name, kind in types.items()}

    def _run(self, spec: LaunchSpec, node: str, kind: InstanceType) -> None:
        self.before_run()
        self._note("run", node)
        self._forget(lambda m: m.unstarted and m.node == node)
        self.there(node, spec.offer.zone, generation=spec.generation)

    def _end(self, one: Tagged) -> None:
        self._note("end", one.short)
        self.ends(one)

    def ends(self, one: Tagged) -> None:
        gone = replace(one.machine, state=InstanceState.TERMINATED)
        if one in self.machines:
            self.machines[self.machines.index(one)] = replace(one, machine=gone)

    def _remove(self, one: Tagged) -> None:
        self._note("remove", one.short)
        self._forget(lambda m: m.short == one.short)

    def _forget(self, which: Callable[[Tagged], bool]) -> None:
        """In the list as it is: others are started and ended meanwhile, by threads of their own."""
        for one in [m for m in self.machines if which(m)]:
            self.machines.remove(one)

    def _ping(self, host: str) -> None:
        self._note("ping", host)

    def did(self, what: str) -> list[str]:
        return sorted(about for done, about in self.done if done == what)


def spec(*nodes: str, host: str = "a", kind: str = "small", generation: str = "g1") -> LaunchSpec:
    offer = Offer(
        cloud="rack", location=Location.ON_PREMISES, instance_type=kind, zone=host,
        market=Market.RESERVED, price=0.02, cpus=2, memory=4096,
    )  # fmt: skip
    return LaunchSpec(generation=generation, pool=POOL, nodes=nodes, offer=offer)


@pytest.fixture
def rack() -> Rack:
    return Rack()


def launched(rack: Rack, *nodes: str, **how: str) -> list[str]:
    return [one.node for one in rack.launch(spec(*nodes, **how))]


AWAY = TransientError("rack", "Timeout", "no answer")
REFUSED = ProviderError("rack", "BadImage", "no such image")


# offers


def test_each_type_on_each_host_with_the_room_there(rack: Rack) -> None:
    rack.there("n1", "a")
    found = {(o.instance_type, o.zone): (o.free, o.free_reason) for o in rack.offers(POOL)}
    assert found == {
        ("small", "a"): (3, "2 of 8 cpus are given out"),
        ("small", "b"): (4, "0 of 8 cpus are given out"),
        ("large", "a"): (1, "2 of 8 cpus are given out"),
        ("large", "b"): (2, "0 of 8 cpus are given out"),
    }


def test_only_what_the_pool_takes(rack: Rack) -> None:
    some = replace(POOL, zones=("b", "elsewhere"), instance_types=("large", "huge"))
    assert [(o.instance_type, o.zone) for o in rack.offers(some)] == [("large", "b")]
    rack.done.clear()
    for nothing in (
        replace(POOL, markets=(Market.SPOT,)),
        replace(POOL, zones=("elsewhere",)),
        replace(POOL, instance_types=("huge",)),
    ):
        assert rack.offers(nothing) == ()
    assert rack.done == [], "no host is asked for that"


def test_a_host_that_does_not_answer_is_no_offer(rack: Rack) -> None:
    rack.wrong["rows", "a"] = AWAY
    assert {o.zone for o in rack.offers(POOL)} == {"b"}
    rack.wrong["rows", "b"] = AWAY
    with pytest.raises(TransientError):
        rack.offers(POOL)


@pytest.mark.parametrize(
    ("size", "used", "found"),
    [
        ((8, 16384), (0, 0), (4, "0 of 8 cpus are given out")),
        ((8, 8192), (0, 0), (2, "0 of 8192 MiB are given out")),
        ((8, 16384), (3, 4096), (2, "3 of 8 cpus are given out")),
        ((2, 4096), (4, 4096), (0, "4 of 2 cpus are given out")),
        ((8, 4096), (2, 8192), (0, "8192 of 4096 MiB are given out")),
    ],
)
def test_room_is_what_is_shortest(
    size: tuple[int, int], used: tuple[int, int], found: tuple[int, str]
) -> None:
    assert room(SMALL, size, used) == found


# launching


def test_a_machine_for_each_node_on_the_offers_host_and_none_twice(rack: Rack) -> None:
    assert launched(rack, "n1", "n2") == ["n1", "n2"]
    assert {m.host for m in rack.machines} == {"a"}
    assert launched(rack, "n1", "n2", "n3") == ["n1", "n2", "n3"]
    assert rack.did("run") == ["n1", "n2", "n3"]
    assert launched(rack) == []


def test_there_is_no_more_than_room(rack: Rack) -> None:
    assert launched(rack, *NODES) == list(NODES[:4])
    with pytest.raises(CapacityError, match="NoSlots: a: 8 of 8 cpus are given out"):
        launched(rack, "n8", generation="g2")
    assert launched(rack, *NODES) == list(NODES[:4]), "a repeated one has what it had"


def test_one_that_a_call_cut_off_has_made_is_started(rack: Rack) -> None:
    rack.size = (2, 4096)
    rack.there("n1", half=True)
    assert launched(rack, "n1") == ["n1"], "there is no room for another, and none is needed"
    assert rack.did("run") == ["n1"]
    assert not any(m.unstarted for m in rack.machines)


def test_machines_that_have_ended_are_not_made_again(rack: Rack) -> None:
    rack.ends(rack.there("n1"))
    assert launched(rack, "n1", "n2") == ["n2"]
    rack.ends(rack.machines[-1])
    with pytest.raises(CapacityError, match="MachinesGone: 2 machines of this launch have ended"):
        launched(rack, "n1", "n2")
    assert rack.did("run") == ["n2"]


def test_a_refusal_ends_the_launch_and_what_runs_by_then_is_its_answer(
    rack: Rack, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    rack.wrong["run", "n2"] = REFUSED
    assert "n1" in launched(rack, "n1", "n2", "n3", "n4")
    assert rack.did("run") in (["n1", "n2"], ["n1", "n2", "n3"]), "the later ones are not tried"
    partial = "launch is partial generation={} error=rack: BadImage: no such image"
    assert caplog.messages == [partial.format("g1")]
    launched(rack, "n1", generation="g3")
    assert caplog.messages == [partial.format("g1")]
    with pytest.raises(ProviderError, match="BadImage"):
        launched(rack, "n2", generation="g2")


@pytest.mark.parametrize("error", [AWAY, RuntimeError("nobody thought of that")])
def test_what_is_in_doubt_is_raised_also_beside_a_refusal(rack: Rack, error: Exception) -> None:
    rack.wrong["run", "n1"], rack.wrong["run", "n2"] = REFUSED, error
    rack.before_run = threading.Barrier(2, timeout=60).wait
    with pytest.raises(type(error)):
        launched(rack, "n1", "n2")


@pytest.mark.parametrize("offer", [{"kind": "huge"}, {"host": "elsewhere"}])
def test_an_offer_that_the_settings_do_not_have_any_more_is_refused(
    rack: Rack, offer: dict[str, str]
) -> None:
    with pytest.raises(ProviderError, match="NoType: the settings have no "):
        launched(rack, "n1", **offer)


def test_launches_on_one_host_wait_for_each_other_no_longer_than_a_call_may(rack: Rack) -> None:
    runs, go_on = threading.Event(), threading.Event()

    def before_run() -> None:
        runs.set()
        assert go_on.wait(60)

    rack.before_run = before_run
    with ThreadPoolExecutor(1) as other:
        first = other.submit(launched, rack, "n1")
        assert runs.wait(60)
        rack.before_run = lambda: None
        with (
            until(time.monotonic() + 0.05),
            pytest.raises(TransientError, match="Busy: a: another launch takes long"),
        ):
            launched(rack, "n2")
        assert launched(rack, "n2", host="b") == ["n2"]
        go_on.set()
        assert first.result(60) == ["n1"]
    assert launched(rack, "n3") == ["n3"]


# whose


def test_machines_of_another_cluster_or_cloud_are_neither_listed_nor_ended() -> None:
    owners = Ownership(cluster=UUID, clouds=frozenset({"rack", "other"}), pools={"p": "rack"})
    rack = Rack(owners)
    rack.there("n1", tags={tags.CLUSTER: "another"})
    rack.there("n2", tags={tags.CLUSTER: UUID, tags.CLOUD: "other"})
    rack.there("n3", tags={tags.CLUSTER: UUID, tags.POOL: "p"})
    assert [m.node for m in rack.instances()] == ["n3"]
    not_ours, ended = EndAnswer.NOT_OURS, EndAnswer.ENDED
    answers = rack.terminate(["n1@a", "n2@a", "n3@a"])
    assert answers == {"n1@a": not_ours, "n2@a": not_ours, "n3@a": ended}
    assert rack.did("end") == ["n3@a"]


# listing and ending


def test_a_list_is_whole_or_none(rack: Rack) -> None:
    rack.there("n1", "a")
    rack.there("n2", "b")
    rack.ends(rack.there("n3", "b"))
    assert [m.node for m in rack.instances()] == ["n1", "n2"]
    rack.wrong["rows", "b"] = AWAY
    with pytest.raises(TransientError):
        rack.instances()
    rack.check()
    assert rack.did("ping") == ["a", "b"]
    assert rack.notices() == ()


def test_each_is_ended_once_and_unknown_ids_are_gone(rack: Rack) -> None:
    rack.there("n1", "a")
    rack.there("n2", "b")
    assert rack.terminate([]) == {}
    assert rack.done == []
    ended = dict.fromkeys(("n1@a", "n2@b"), EndAnswer.ENDED)
    answers = rack.terminate(["n1@a", "n2@b", "n1@a", "n9@a"])
    assert answers == ended | {"n9@a": EndAnswer.GONE}
    assert rack.did("end") == ["n1@a", "n2@b"]
    rack.done.clear()
    rack.terminate(["n1@a"])
    assert rack.done == [("end", "n1@a")], "a known one is not looked for"


def test_an_absent_host_keeps_no_machine_of_another_host_alive(rack: Rack) -> None:
    rack.there("n1", "a")
    rack.there("n2", "b")
    rack.wrong["rows", "b"] = AWAY
    with pytest.raises(TransientError, match="Timeout"):
        rack.terminate(["n2@b", "n1@a"])
    assert rack.did("end") == ["n1@a"]


def test_what_must_be_repeated_is_told_before_what_will_not_pass(rack: Rack) -> None:
    for node in ("n1", "n2", "n3"):
        rack.there(node)
    rack.wrong["end", "n1@a"] = AuthError("rack", "NotPermitted", "no")
    with pytest.raises(AuthError, match="NotPermitted: n1@a: no"):
        rack.terminate(["n1@a", "n3@a"])
    rack.wrong["end", "n2@a"] = AWAY
    with pytest.raises(TransientError, match="Timeout: n2@a: no answer"):
        rack.terminate(["n1@a", "n2@a"])


def test_ended_ones_are_kept_for_a_while_and_removed_a_few_at_a_time(rack: Rack) -> None:
    many = [rack.there(f"x{n}") for n in range(REMOVED_AT_ONCE + 2)]
    for one in many:
        rack.ends(one)
    rack.tidy()
    rack.now += KEPT - 1
    rack.tidy()
    assert rack.did("remove") == []
    rack.now += 1
    rack.instances()
    assert rack.did("remove") == [], "a list removes nothing"
    rack.tidy()
    assert rack.did("remove") == [m.short for m in many[:REMOVED_AT_ONCE]]
    rack.tidy()
    assert rack.machines == []
    rack.done.clear()
    rack.terminate([many[0].short])
    assert set(rack.did("rows")) == {"a", "b"}, "it is not known any more"


def test_one_that_cannot_be_removed_stays_till_later(
    rack: Rack, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    for node in ("n1", "n2"):
        rack.ends(rack.there(node))
    rack.tidy()
    rack.now += KEPT
    rack.wrong["remove", "n1@a"] = AWAY
    assert rack.tidy() == ()
    assert [m.node for m in rack.machines] == ["n1"]
    assert "ended machine not removed, its disk stays until a later try" in caplog.text
    rack.wrong.clear()
    rack.tidy()
    assert rack.machines == []


def test_machines_that_cannot_be_removed_keep_no_disk_of_other_machines(rack: Rack) -> None:
    stuck = [rack.there(f"s{n}") for n in range(REMOVED_AT_ONCE)]
    for machine in [*stuck, *(rack.there(f"x{n}") for n in range(2 * REMOVED_AT_ONCE))]:
        rack.ends(machine)
    rack.wrong |= {("remove", m.short): REFUSED for m in stuck}
    rack.tidy()
    rack.now += KEPT
    for _ in range(3):
        rack.tidy()
    assert {m.short for m in rack.machines} == {m.short for m in stuck}
    assert rack.trouble.startswith("the disks of 5 ended machines stay and fill the storage: s0")
    assert str(REFUSED) in rack.trouble
    rack.wrong.clear()
    rack.tidy()
    assert rack.machines == []
    assert rack.trouble == ""


# moved to another host


def moved(rack: Rack, **there: Any) -> None:
    """n1 has left host a, where its definition says so or not, and runs on host b."""
    rack.can_move = True  # type: ignore[misc]
    rack.there("n1", "a", id="n1", **{"moved": True, **there})
    rack.there("n1", "b", id="n1")


@pytest.mark.parametrize(
    "at_a", [{"moved": True}, {"state": InstanceState.TERMINATED, "moved": False}]
)
@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
def test_a_machine_that_was_moved_is_one_and_runs(
    rack: Rack, at_a: dict[str, Any], order: tuple[str, ...]
) -> None:
    moved(rack, **at_a)
    rack._hosts.names = order
    for _ in range(3):
        (machine,) = rack.tidy()
        assert (machine.zone, machine.state) == ("b", InstanceState.RUNNING)
        rack.now += KEPT
    assert rack.did("remove") == []
    assert rack.terminate(["n1"]) == {"n1": EndAnswer.ENDED}
    assert [m.host for m in rack.machines if m.ended and not m.moved][-1] == "b"
    assert rack.did("end") == ["n1"], "it is not ended where it does not run"


def test_a_machine_that_moved_since_the_last_list_is_ended_where_it_is(rack: Rack) -> None:
    rack.can_move = True  # type: ignore[misc]
    first = rack.there("n1", "a", id="n1")
    rack.instances()
    rack.ends(first)
    rack.there("n1", "b", id="n1")
    rack.terminate(["n1"])
    assert all(m.ended for m in rack.machines)


def test_a_machine_that_may_run_on_a_silent_host_is_not_ended(rack: Rack) -> None:
    moved(rack)
    rack.wrong["rows", "b"] = AWAY
    with pytest.raises(TransientError, match="Timeout"):
        rack.terminate(["n1"])
    assert rack.did("end") == []


def test_a_machine_that_was_moved_to_an_unknown_host_is_an_error_for_a_person(rack: Rack) -> None:
    rack.can_move = True  # type: ignore[misc]
    rack.there("n1", "a", id="n1", moved=True)
    assert [m.state for m in rack.tidy()] == [InstanceState.RUNNING]
    with pytest.raises(ProviderError, match="Moved: n1: it was moved from a to a host that"):
        rack.terminate(["n1"])
    assert rack.did("end") == []


# settings


def test_a_host_by_two_names_is_told_of() -> None:
    told: list[object] = []
    draft = SimpleNamespace(problems=SimpleNamespace(add=lambda *words: told.append(words)))
    addresses = {"a": "10.0.0.1", "b": "10.0.0.2", "c": "10.0.0.1"}
    own_addresses(draft, ("clouds", 0), "url", addresses)  # type: ignore[arg-type]
    ((at, found, expected),) = told  # type: ignore[misc]
    assert at == ("clouds", 0, "hosts", "c", "url")
    assert "10.0.0.1" in found
    assert found.endswith(", which hosts.a has already")
    assert expected == "a url of its own"
