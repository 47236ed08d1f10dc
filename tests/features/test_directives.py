"""Operators' words at run time: pauses and limits that hold at once, and end by themselves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.config.sections.policies import Budget, SitePolicies
from slurm_elastic.controller import context, holds
from slurm_elastic.controller.context import Site
from slurm_elastic.controller.holds import find_closed_nodes
from slurm_elastic.features.orders.directives import closed_nodes, subjects_of
from slurm_elastic.model.causes import AnyCause
from slurm_elastic.model.cluster import Limits
from slurm_elastic.model.directive import Departure, Directive, LimitChange, Pause, Word
from slurm_elastic.model.exclusion import OPERATOR, POLICY
from slurm_elastic.model.memory import Tunnel
from slurm_elastic.policies.nodes.node_state import Phase, is_drained, phase
from slurm_elastic.policies.repair.tunnel_addresses import addresses_of
from slurm_elastic.watch.door.orders import carry_out
from slurm_elastic.watch.door.questions import DirectAsk, EndAsk
from tests.controller.world import ONP, PUB, T0, World


@pytest.fixture
def world() -> Iterator[World]:
    made = World(limits=Limits(nodes=10))
    yield made
    made.close()


def say(world: World, word: Word, seconds: float | None = None, reason: str = "") -> None:
    ask = DirectAsk(word=word, seconds=seconds, reason=reason)
    carry_out(world.config, ask, "alice", world.now)


def running(world: World) -> list[int]:
    return sorted(j.id for j in world.slurm.queue().values() if "RUNNING" in j.states)


def drained(world: World) -> list[str]:
    return [n for n in (*ONP, *PUB) if is_drained(world.slurm.node(n))]


def test_a_paused_pool_starts_nothing_and_its_running_jobs_stay(world: World) -> None:
    world.slurm.submit(1, PUB[:1])
    world.advance(60)
    assert running(world) == [1]
    say(world, Pause(scope="pool:burst"), reason="new image")
    world.advance(15)
    assert drained(world) == ["pub2", "pub3"], "what is off is kept from Slurm"
    assert "paused by alice: new image" in world.slurm.node("pub2").reason
    world.slurm.submit(2, PUB, 1)
    world.advance(120)
    assert running(world) == [1]
    assert len(world.alive("pub")) == 1
    world.slurm.finish(1)
    world.advance(30)
    assert running(world) == [2], "a machine that is there may be used"


def test_a_machine_that_goes_during_a_pause_is_not_started_again(world: World) -> None:
    world.slurm.submit(1, PUB[:1])
    world.advance(60)
    say(world, Pause(scope="cloud:pub"))
    world.slurm.finish(1)
    world.advance(600)
    assert world.alive("pub") == []
    assert drained(world) == list(PUB)


def test_a_request_that_is_on_its_way_when_the_pause_comes_is_given_back(world: World) -> None:
    say(world, Pause(scope="cloud:pub"))
    world.slurm.submit(1, PUB, 1)  # slurmctld has chosen its node before the nodes are held
    world.advance(120)
    assert world.alive("pub") == []
    (refused,) = [d for d in world.ledger.decisions.about("job:1") if d.kind == "refused"]
    assert str(refused.reason) == "2 offers: cloud pub is paused by alice"
    assert "PENDING" in world.slurm.queue()[1].states


def test_a_pause_ends_by_itself_after_its_time(world: World) -> None:
    say(world, Pause(scope="pool:burst"), seconds=120)
    world.slurm.submit(1, PUB, 1)
    world.advance(100)
    assert running(world) == []
    world.advance(600)
    assert running(world) == [1]
    assert world.ledger.directives.all() == ()
    assert drained(world) == []
    assert [d.kind for d in world.ledger.decisions.about("pool:burst")][:2] == [
        "directed", "directive-over",
    ]  # fmt: skip


def test_a_pause_ends_by_the_word_of_a_person(world: World) -> None:
    say(world, Pause(scope=""))
    world.advance(15)
    assert drained(world) == [*ONP, *PUB]
    (one,) = world.ledger.directives.all()
    (line,) = carry_out(world.config, EndAsk(numbers=(one.number,)), "bob", world.now)
    assert line == "order ended: the cluster is paused by alice"
    world.advance(10)
    assert drained(world) == []
    last = world.ledger.decisions.about("pool:rack")[-1]
    assert (last.kind, str(last.reason)[-12:]) == ("directive-ended", "ended by bob")


def test_an_admins_own_drain_outlives_a_pause(world: World) -> None:
    world.slurm.update_nodes(["pub1"], state="DRAIN", reason="disk")
    say(world, Pause(scope="pool:burst"), seconds=60)
    world.advance(120)
    assert drained(world) == ["pub1"]
    assert world.slurm.node("pub1").reason == "disk"


def test_a_restarted_daemon_goes_by_it(world: World) -> None:
    say(world, Pause(scope="pool:burst"), seconds=600)
    world.restart()
    world.slurm.submit(1, PUB, 1)
    world.advance(120)
    assert running(world) == []
    world.restart()
    world.advance(900)
    assert running(world) == [1]


def test_a_pause_of_the_cloud_that_policies_grow_holds_what_they_would_start(
    tmp_path: Path,
) -> None:
    world = World(
        tmp_path, limits=Limits(nodes=10), policies=SitePolicies(growth="bursts", poll_interval=5)
    )
    say(world, Pause(scope="cloud:onp"), seconds=300)
    world.slurm.submit(1, ONP, 1, partitions=("onp",), limit=3600, node_count=1)
    world.advance(120)
    assert world.alive("onp") == []
    world.advance(600)
    assert len(world.alive("onp")) == 1
    world.close()


def test_a_limit_of_a_pool_holds_at_once_and_ends_no_machine(world: World) -> None:
    for job in (1, 2):
        world.slurm.submit(job, PUB, 1)
    world.advance(60)
    assert running(world) == [1, 2]
    say(world, LimitChange(scope="cloud:pub", key="dollars_per_hour", value=10))
    say(world, LimitChange(scope="pool:burst", key="max_nodes", value=1), seconds=600)
    world.slurm.submit(3, PUB, 1)
    world.advance(60)
    assert running(world) == [1, 2]
    (refused,) = [d for d in world.ledger.decisions.about("job:3") if d.kind == "refused"]
    assert "pool burst is limited to 1 node, 2 are in use" in str(refused.reason)
    world.advance(1200)
    assert 3 in running(world)


def test_a_cap_may_be_raised_for_a_while(world: World) -> None:
    for job in (1, 2, 3):
        world.slurm.submit(job, PUB, 1)
    world.advance(60)
    assert len(world.alive("pub")) == 2, "$0.25 an hour are two machines"
    say(world, LimitChange(scope="cloud:pub", key="dollars_per_hour", value=0.3))
    world.advance(400)
    assert running(world) == [1, 2, 3]


def test_a_limit_lowered_for_a_while_says_nothing_of_never(world: World) -> None:
    say(world, LimitChange(scope="", key="nodes", value=1), seconds=120)
    world.slurm.submit(1, ONP, 2, partitions=("onp",))
    world.advance(60)
    assert [d.kind for d in world.ledger.decisions.about("job:1") if d.kind == "never"] == []
    world.advance(900)
    assert running(world) == [1]


def test_a_budget_may_be_changed(tmp_path: Path) -> None:
    world = World(
        tmp_path,
        limits=Limits(nodes=10),
        policies=SitePolicies(budget=Budget(per_day=10), poll_interval=5),
    )
    say(world, LimitChange(scope="", key="per_day", value=0.001))
    world.slurm.submit(1, PUB[:1], 1)
    world.advance(400)
    world.slurm.submit(2, PUB[1:], 1, partitions=("pub",))
    world.advance(60)
    assert len(world.alive("pub")) <= 1
    assert any(is_drained(world.slurm.node(n)) for n in PUB)
    world.close()


def test_a_later_word_about_the_same_takes_the_place_of_the_earlier(world: World) -> None:
    say(world, Pause(scope="pool:burst"), seconds=60)
    say(world, LimitChange(scope="pool:burst", key="max_nodes", value=1))
    lines = carry_out(
        world.config, DirectAsk(word=Pause(scope="pool:burst"), reason="longer"), "bob", world.now
    )
    assert lines[0].startswith("order ended: pool burst is paused by alice until")
    assert [(d.who, d.reason) for d in world.ledger.directives.all()] == [
        ("alice", ""),
        ("bob", "longer"),
    ]


def test_an_order_in_force_lasts_until_the_one_begins_that_replaces_it(world: World) -> None:
    word = Departure(verb="drain", about="cloud pub", nodes=tuple(PUB), scope="cloud:pub")
    say(world, word)
    world.advance(60)
    later = DirectAsk(word=replace(word, aggressive=True), starts=world.now + 600)
    lines = carry_out(world.config, later, "bob", world.now)
    assert lines[0].startswith("order ends at 20")
    assert lines[1].startswith("from 20")
    for _ in range(14):
        assert set(PUB) <= set(drained(world)), world.now
        world.advance(60)
    (left,) = world.ledger.directives.all()
    assert (left.who, left.until) == ("bob", None)
    assert carry_out(world.config, DirectAsk(word=word), "eve", world.now)[0].startswith(
        "order ended: cloud pub is drained by bob"
    )


def test_nodes_that_are_up_are_left_alone(world: World) -> None:
    world.slurm.submit(1, PUB[:1])
    world.advance(60)
    say(world, Pause(scope="pool:burst"))
    world.advance(60)
    assert phase(world.slurm.node("pub1")) is Phase.UP
    assert {h.scope for h in world.ledger.exclusions.holds() if h.kind == OPERATOR} == set(PUB)


@pytest.mark.parametrize(
    ("word", "said"),
    [
        (
            Pause(scope="pool:nope"),
            r"'pool:nope' is no pool, cloud, account or user with a budget",
        ),
        (LimitChange(scope="pool:burst", key="nodes", value=1), "pool burst has no limit 'nodes'"),
        (LimitChange(scope="", key="nodes", value=1.5), "nodes is a number of machines from 0 on"),
        (LimitChange(scope="", key="per_day", value=0), "per_day is an amount of dollars above 0"),
        (LimitChange(scope="account:x", key="per_day", value=1), "'account:x' is no pool, cloud"),
    ],
)
def test_what_the_configuration_does_not_have_is_refused(
    world: World, word: Word, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        say(world, word)
    assert world.ledger.directives.all() == ()


@pytest.mark.parametrize(
    ("word", "subjects"),
    [
        (Pause(scope=""), ("pool:rack", "pool:burst")),
        (Pause(scope="pool:burst"), ("pool:burst",)),
        (Pause(scope="cloud:onp"), ("pool:rack",)),
        (Pause(scope="cloud:other"), ()),
        (LimitChange(scope="account:physics", key="per_day", value=1), ("pool:rack", "pool:burst")),
        (LimitChange(scope="user:ann", key="per_day", value=1), ("pool:rack", "pool:burst")),
        (Departure(verb="drain", about="op1", nodes=("op1",)), ("op1",)),
        (Departure(verb="drain", about="x", nodes=("op1",), scope="pool:rack"), ("pool:rack",)),
    ],
)
def test_a_word_is_about_the_pools_of_its_scope_or_its_nodes(
    world: World, word: Word, subjects: tuple[str, ...]
) -> None:
    one = Directive(word=word, who="alice", since=world.now, starts=world.now)
    assert subjects_of(world.config, one) == subjects


def test_single_nodes_are_closed_with_the_pools_and_only_those_of_ours(world: World) -> None:
    for word in (
        Departure(verb="drain", about="x", nodes=("op1", "strange")), Pause(scope="pool:burst")
    ):  # fmt: skip
        world.ledger.directives.give(
            Directive(word=word, who="alice", since=world.now, starts=world.now)
        )
    assert closed_nodes(world.site).keys() == {"op1", *PUB}


def test_the_nodes_of_a_pool_are_held_in_one_transaction(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each costs a sync of the disk, and reads all holds once more: a pool may be large."""
    held: list[Sequence[str]] = []
    hold_back = holds.hold_back

    def counted(site: Site, nodes: Sequence[str], why: AnyCause, kind: str = POLICY) -> None:
        held.append(nodes)
        hold_back(site, nodes, why, kind)

    monkeypatch.setattr(holds, "hold_back", counted)
    say(world, Pause(scope="pool:burst"), reason="new image")
    world.advance(15)
    assert [set(nodes) for nodes in held] == [set(PUB)]
    assert drained(world) == [*PUB]


def test_a_node_whose_address_is_another_machines_gets_none_until_that_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    addresses = addresses_of("10.99.0.0/16", {"burst": PUB})
    monkeypatch.setattr(context, "node_addresses", lambda _: addresses)
    world = World(tmp_path, limits=Limits(nodes=10))
    # Before the first node left the front of the pool, this was the address of a later node.
    other = Tunnel(generation="g1", node="gone", address=addresses["pub1"], key="K", since=T0)
    assert world.ledger.tunnels.enrol(other) == ""
    world.slurm.submit(1, PUB[:1], 1)
    world.advance(60)
    assert world.alive("pub") == []
    (refused,) = [d for d in world.ledger.decisions.about("job:1") if d.kind == "refused"]
    assert str(refused.reason) == (
        f"its address in the tunnel, {addresses['pub1']}, still belongs to the machine of gone;"
        " it may start after that machine has ended"
    )
    assert drained(world) == ["pub1"], "the pool's other nodes may start"
    assert find_closed_nodes(world.site, world.ledger.state()) == {"pub1"}
    world.slurm.submit(2, PUB, 1)
    world.advance(120)
    assert 2 in running(world)
    assert world.machines_of("pub1") == []
    world.ledger.tunnels.end([other])
    world.advance(600)
    assert drained(world) == []
    assert running(world) == [1, 2]
    world.close()
