"""Holds: put on when they last, lifted when there is room, and only ever our own."""

from __future__ import annotations

import dataclasses
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from slurm_elastic.cli.operate.status import gather_day
from slurm_elastic.config.sections.policies import PoolPolicies
from slurm_elastic.controller import giving_back, holds
from slurm_elastic.model.causes import Quoted
from slurm_elastic.model.exclusion import BREAKER, CAPACITY, COOL_DOWN, OPERATOR, POLICY, Exclusion
from slurm_elastic.model.slurm import SlurmNode
from slurm_elastic.policies.nodes.node_state import Phase, is_drained, phase
from slurm_elastic.watch.door.records import read_facts
from slurm_elastic.watch.view import status_view
from slurm_elastic.watch.view.day import DaySpan
from tests.controller.world import PUB, World, make_config


def drained(world: World) -> list[str]:
    return [n for n in PUB if is_drained(world.slurm.node(n))]


def hold(
    world: World, nodes: Sequence[str] = PUB, why: str = "none left", until: float = 50
) -> None:
    rows = [
        Exclusion(
            kind=CAPACITY,
            scope=n,
            pool="burst",
            cause=Quoted(text=why),
            since=world.now,
            until=world.now + until,
        )
        for n in nodes
    ]
    world.ledger.exclusions.add(*rows)


@pytest.mark.parametrize(
    ("states", "can"),
    [
        ("IDLE CLOUD POWERED_DOWN", True),
        ("IDLE CLOUD POWERING_DOWN", True),
        ("IDLE CLOUD POWER_DOWN NOT_RESPONDING", False),
        ("IDLE CLOUD", False),
        ("ALLOCATED CLOUD", False),
        ("ALLOCATED CLOUD POWERING_UP NOT_RESPONDING", False),
        ("IDLE CLOUD DRAIN POWERED_DOWN", False),
        ("DOWN CLOUD POWERED_DOWN", False),
    ],
)
def test_a_drain_is_sent_where_it_lasts(states: str, can: bool) -> None:
    assert holds.can_drain(SlurmNode(name="n", states=frozenset(states.split()))) is can


def test_a_reason_is_one_line_of_bounded_length() -> None:
    reason = holds.hold_reason(Quoted(text='no\n"capacity"  ' + "x" * 500))
    assert reason.startswith("slurm-elastic:hold:no 'capacity' x")
    assert len(reason) == holds.MAX_REASON


def test_holds_are_put_on_and_end(world: World) -> None:
    hold(world, ("pub1", "pub2"))
    world.advance(5)
    assert drained(world) == ["pub1", "pub2"]
    world.advance(100)
    assert drained(world) == []
    assert world.ledger.exclusions.holds() == ()


def test_a_hold_is_lifted_once(world: World) -> None:
    """A second time may be an error in Slurm, and would end the round."""
    hold(world, ("pub1", "pub2"))
    world.advance(100)
    lifted = [
        c["names"] for n, c in world.slurm.updates if n == "update_nodes" and c["state"] == "IDLE"
    ]
    assert lifted == [("pub1", "pub2")]
    assert "NOT_RESPONDING" not in world.slurm.node("pub1").states
    assert [h.error for h in world.ledger.health.all() if h.name == "slurm"] == [None]


def test_only_as_many_are_released_as_all_offers_together_have_room_for(world: World) -> None:
    """Spot and on-demand share the cap of two machines: a third node would only bounce."""
    hold(world)
    world.advance(120)
    assert drained(world) == ["pub3"]
    assert [row.scope for row in world.ledger.exclusions.holds()] == ["pub3"]


def test_slurm_is_left_alone_while_holds_stand(world: World) -> None:
    world.clouds["pub"].limit("*", 0)
    hold(world, until=1e6)
    world.advance(60)
    before = world.slurm.calls["nodes"]
    world.advance(600, step=1)
    rounds = 2 * 600 / world.config.timings.reconcile_interval
    assert world.slurm.calls["nodes"] - before <= rounds * 2 + 5


def test_a_hold_that_an_admin_lifts_comes_back_until_it_is_over(world: World) -> None:
    world.clouds["pub"].limit("*", 0)
    hold(world, until=1e6)
    world.advance(5)
    world.slurm.update_nodes(["pub1"], state="RESUME")
    world.advance(40)
    assert drained(world) == list(PUB)


def test_a_hold_that_an_admin_takes_over_is_the_admins(world: World) -> None:
    hold(world, ["pub1"])
    world.advance(5)
    world.slurm.set_node("pub1", reason="fan is broken")
    world.advance(200)
    assert drained(world) == ["pub1"]
    assert world.ledger.exclusions.holds() == ()


def test_a_hold_of_ours_that_the_ledger_does_not_know_is_lifted(world: World) -> None:
    world.slurm.update_nodes(["pub1"], state="DRAIN", reason="slurm-elastic:hold:lost")
    world.slurm.update_nodes(["pub2"], state="DRAIN", reason="an admin's")
    world.advance(5)
    assert drained(world) == ["pub2"]


def test_while_the_cloud_tells_no_offers_nodes_stay_held(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: object) -> None:
        raise ValueError("no JSON")

    hold(world)
    with monkeypatch.context() as patched:
        patched.setattr(world.clouds["pub"], "offers", broken)
        world.advance(300)
        assert drained(world) == list(PUB)
    world.advance(600)
    assert drained(world) == []


def test_a_held_node_that_slurm_does_not_know_any_more_stops_no_other_hold(world: World) -> None:
    rows = [
        Exclusion(kind=CAPACITY, scope=name, pool="burst", cause=Quoted(text="x"), since=world.now,
                  until=world.now + 1e6)
        for name in ("no-such-node", "pub1")
    ]  # fmt: skip
    world.ledger.exclusions.add(*rows)
    assert holds.drain_when_powered_down(world.site) is False
    assert drained(world) == ["pub1"]


def test_holds_of_a_pool_that_is_no_more_end(world: World) -> None:
    world.slurm.set_node("old1", "IDLE", "CLOUD", "POWERED_DOWN")
    row = Exclusion(
        kind=CAPACITY,
        scope="old1",
        pool="gone",
        cause=Quoted(text="x"),
        since=world.now,
        until=world.now + 1e6,
    )
    world.ledger.exclusions.add(*[row, replace(row, scope="old2")])
    world.slurm.update_nodes(["old1"], state="DRAIN", reason="slurm-elastic:hold:x")
    world.advance(40)
    assert world.ledger.exclusions.holds() == ()
    assert not is_drained(world.slurm.node("old1"))


@pytest.mark.parametrize(("length", "cut"), [(181, False), (182, True)])
def test_a_reason_may_have_two_hundred_characters(length: int, cut: bool) -> None:
    reason = holds.hold_reason(Quoted(text="x" * length))
    assert len(reason) == 200
    assert reason.endswith("...") is cut


def test_a_hold_ends_with_the_first_cool_down_of_its_cloud_or_the_pause_of_its_pool(
    world: World,
) -> None:
    pool, now = world.site.pools["burst"], world.now
    assert holds.find_end_of_hold(world.site, pool) == now + world.config.timings.capacity_cooldown
    for scope, seconds in (("onp/a/b/c", 10), ("pub/a/b/c", 900), ("pub/*/*/spot", 600)):
        world.ledger.exclusions.add(Exclusion(kind=COOL_DOWN, scope=scope, until=now + seconds))
    assert holds.find_end_of_hold(world.site, pool) == now + 600
    world.ledger.exclusions.add(Exclusion(kind=COOL_DOWN, scope="*", until=now + 300))
    assert holds.find_end_of_hold(world.site, pool) == now + 300
    for scope, until in (("rack", now + 50), ("burst", now)):
        world.ledger.exclusions.add(Exclusion(kind=BREAKER, scope=scope, until=until, count=3))
    assert holds.find_end_of_hold(world.site, pool) == now + 300, (
        "that pause is over, or another pool's"
    )
    world.ledger.exclusions.add(Exclusion(kind=BREAKER, scope="burst", until=now + 5000, count=3))
    assert holds.find_end_of_hold(world.site, pool) == now + 5000


@pytest.mark.parametrize(
    ("states", "reason", "waits", "updates"),
    [
        ("IDLE POWERED_DOWN", "", False, ["DRAIN"]),
        ("IDLE POWERING_DOWN", "", False, ["DRAIN"]),
        ("IDLE POWERING_UP", "", True, []),
        ("IDLE", "", False, []),
        ("IDLE DRAIN POWERED_DOWN", "slurm-elastic:hold:none left", False, []),
        ("IDLE DRAIN POWERED_DOWN", "slurm-elastic:hold:another", False, ["reason"]),
        ("IDLE DRAIN POWERED_DOWN", "fan is broken", False, []),
        ("IDLE DRAIN POWER_DOWN", "slurm-elastic:hold:none left", True, []),
    ],
)
def test_a_hold_is_put_on_its_node_when_it_lasts_and_waited_for_until_then(
    world: World, states: str, reason: str, waits: bool, updates: list[str]
) -> None:
    hold(world, ["pub1"])
    world.slurm.set_node("pub1", *states.split(), "CLOUD", reason=reason)
    before = len(world.slurm.updates)
    assert holds.drain_when_powered_down(world.site) is waits
    done = [c.get("state") or "reason" for _, c in world.slurm.updates[before:]]
    assert done == updates
    if updates:
        assert world.slurm.node("pub1").reason == "slurm-elastic:hold:none left"


@pytest.mark.parametrize(
    ("states", "reason", "may"),
    [
        ("POWERING_UP", "", True),
        ("POWERING_UP DRAIN", "slurm-elastic:hold:x", True),
        ("POWERING_UP DRAIN", "fan is broken", False),
        ("IDLE", "", False),
        ("POWERING_DOWN", "", False),
    ],
)
def test_only_what_powers_up_and_no_admin_has_drained_is_given_back(
    states: str, reason: str, may: bool
) -> None:
    node = SlurmNode(name="n", states=frozenset(states.split()), reason=reason)
    assert giving_back.may_force(node) is may


@pytest.mark.parametrize("requeue", [True, False])
@pytest.mark.parametrize("state", ["CONFIGURING", "RUNNING"])
def test_only_a_job_that_never_started_loses_its_word_for_a_while(
    world: World, requeue: bool, state: str
) -> None:
    world.slurm.set_node("pub1", "ALLOCATED", "POWERING_UP", "CLOUD")
    world.slurm.set_job(7, state, nodes=("pub1",), requeue=requeue)
    view = world.slurm.nodes(["pub1"])
    given = giving_back.power_down_and_requeue(
        world.site, ["pub1", "pub2"], view, Quoted(text="x"), "r1"
    )
    assert given == {"pub1"}
    assert bool(world.ledger.requeues.lifted()) is (state == "CONFIGURING" and not requeue)
    assert [str(d.reason) for d in world.ledger.decisions.about("job:7")] == [
        "no machine is available for its nodes: x"
    ]


def test_a_node_that_comes_up_while_slurm_tells_its_jobs_is_not_powered_down(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for node, job in (("pub1", 7), ("pub2", 8)):
        world.slurm.set_node(node, "ALLOCATED", "POWERING_UP", "CLOUD")
        world.slurm.set_job(job, "CONFIGURING", nodes=(node,))
    view, really = world.slurm.nodes(["pub1", "pub2"]), world.slurm.jobs

    def slowly() -> Any:
        found = really()
        world.slurm.set_node("pub1", "ALLOCATED", "CLOUD")
        return found

    monkeypatch.setattr(world.slurm, "jobs", slowly)
    given = giving_back.power_down_and_requeue(
        world.site, ["pub1", "pub2"], view, Quoted(text="x"), "r1"
    )
    assert given == {"pub2"}
    assert "POWER_DOWN" not in str(world.slurm.node("pub1").states)
    assert phase(world.slurm.node("pub2")) is Phase.POWERING_DOWN
    told = [d.kind for job in (7, 8) for d in world.ledger.decisions.about(f"job:{job}")]
    assert told == ["requeued"]


def test_a_job_that_is_refused_again_and_again_waits_since_its_first_submission(
    world: World,
) -> None:
    """slurmctld sets SubmitTime anew at each requeue, as this test does."""
    began = world.now
    for _ in range(3):
        world.slurm.set_node("pub1", "ALLOCATED", "POWERING_UP", "CLOUD")
        world.slurm.set_job(7, "CONFIGURING", nodes=("pub1",), submit=world.now)
        world.now += 300.0
        view = world.slurm.nodes(["pub1"])
        assert giving_back.power_down_and_requeue(
            world.site, ["pub1"], view, Quoted(text="x"), "r1"
        )
    world.slurm.set_job(7, "PENDING", submit=world.now + 1, restarts=3)
    facts = replace(
        read_facts(world.config, world.now + 10), jobs=world.slurm.jobs(), nodes=world.slurm.nodes()
    )
    queue = status_view(world.config, facts).queue
    assert queue is not None
    assert queue.oldest == world.now + 10 - began
    assert queue.jobs[0].age == queue.oldest
    day = gather_day(world.config, world.slurm, world.now + 10, DaySpan.HOUR)
    assert day.waiting is not None
    assert day.waiting.count(1) == pytest.approx(queue.oldest / day.step, abs=2)


@pytest.mark.parametrize("kind", [CAPACITY, POLICY])
def test_nodes_that_a_growth_policy_starts_are_kept_back_for_it_when_they_are_let_go(
    tmp_path: Path, kind: str
) -> None:
    """But for the policy's own word; a node that it keeps back already stays as it is."""
    plain = make_config(tmp_path).pools
    pools = (plain[0], replace(plain[1], policies=PoolPolicies(growth="bursts(waste=120)")))
    world = World(tmp_path, pools=pools)
    holds.hold_back(world.site, ["pub1"], Quoted(text="as before"))
    hold(world, ["pub1", "pub2", "pub3"])
    hold(world, ["op1"])
    holds.release(
        world.site, ["pub1", "pub2", "op1", "of-no-pool"], Quoted(text="there is room"), kind
    )
    kept = {
        row.scope: str(row.cause) for row in world.ledger.exclusions.holds() if row.kind == POLICY
    }
    held = [row.scope for row in world.ledger.exclusions.holds() if row.kind == CAPACITY]
    if kind == CAPACITY:
        assert kept == {"pub1": "as before", "pub2": str(holds.BY_POLICY)}
        assert held == ["pub3"]
    else:
        assert kept == {}
        assert sorted(held) == ["op1", *PUB]
    world.close()


@pytest.mark.parametrize(
    ("states", "reason", "ours"),
    [
        ("IDLE DRAIN", "slurm-elastic:hold:none left", True),
        ("IDLE DRAIN", "", True),
        ("IDLE DRAIN", "fan is broken", False),
        ("IDLE", "slurm-elastic:hold:none left", False),
        ("IDLE", "", False),
    ],
)
def test_only_our_own_drain_is_lifted(states: str, reason: str, ours: bool) -> None:
    node = SlurmNode(name="n", states=frozenset(states.split()), reason=reason)
    assert holds.is_held(node) is ours


@pytest.mark.parametrize(("spare", "held"), [(0, {"pub1", "pub2", "pub3"}), (1, {"pub1"})])
def test_with_the_refused_nodes_those_are_held_that_cannot_be_had_either(
    world: World, spare: int, held: set[str]
) -> None:
    """A policy keeps pub3 back, which is drained already; an operator's node is the operator's."""
    pool, site = world.site.pools["burst"], world.site
    site = dataclasses.replace(site, pool_of={**site.pool_of, "pub4": pool})
    pool = replace(pool, nodes=(*pool.nodes, "pub4", "no-such-node"))
    holds.hold_back(site, ["pub1", "pub3"], holds.BY_POLICY)
    holds.hold_back(site, ["pub4"], Quoted(text="ann tests it"), OPERATOR)
    for name in ("pub3", "pub4"):
        world.slurm.set_node(name, "IDLE", "DRAIN", "CLOUD", "POWERED_DOWN", reason="x")
    view = world.slurm.nodes([*PUB, "pub4"])
    found = giving_back.quarantine_pool(site, pool, ["pub1"], view, Quoted(text="none left"), spare)
    assert found == ([] if spare else ["pub2"])
    rows = [row.scope for row in world.ledger.exclusions.holds() if row.kind == CAPACITY]
    assert (set(rows), len(rows)) == (held, len(held))
    assert is_drained(world.slurm.node("pub2")) is not bool(spare)


def test_a_hold_that_goes_on_tells_since_when_and_each_node_its_own_cause(world: World) -> None:
    began = world.now
    hold(world, ("pub1",), why="sold out")
    hold(world, ("pub2",), why="too dear")
    world.clouds["pub"].limit("*", 0)
    world.advance(1800)
    rows = {row.scope: row for row in world.ledger.exclusions.holds()}
    assert {n: (str(row.cause), row.since) for n, row in rows.items()} == {
        "pub1": ("sold out", began), "pub2": ("too dear", began)
    }  # fmt: skip
    assert all(row.until > world.now - 60 for row in rows.values()), "they were renewed"


STUCK = Path(__file__).parents[2] / "docs" / "stuck.md"
CAUSES = Path(__file__).parents[1] / "golden" / "causes.txt"
SINFO = """#!/bin/sh
for format do :; done
case "$format" in
"%E|%u|%H|%N") awk -F '\\t' '{ print $3 "|root|2026-11-29T12:00:00|" $1 }' "$ROWS" ;;
"%N|%t|%E") for partition in a b; do
    awk -F '\\t' '{ print $1 "|" $2 "|" $3 }' "$ROWS"
  done ;;
*) echo "no such format: $format"; exit 2 ;;
esac
"""
"""As sinfo of Slurm 22.05, which with -N prints a node once for each of its partitions (measured)."""


def test_the_lines_for_monitoring_leave_out_each_hold_and_nothing_else(tmp_path: Path) -> None:
    """All texts of causes are tried, with the lines as docs/stuck.md has them."""
    texts = [line.strip() for line in CAUSES.read_text().splitlines() if line.startswith("  ")]
    held = [holds.hold_reason(Quoted(text=text)) for text in texts]
    assert len(held) > 100
    persons = ["fan is broken", "after slurm-elastic:hold:none left", "slurm-elastic:notice:x"]
    rows = [*((reason, "drain~") for reason in held), *((reason, "drain") for reason in persons)]
    (tmp_path / "rows").write_text(
        "".join(f"n{i}\t{state}\t{reason}\n" for i, (reason, state) in enumerate(rows))
        + "up1\tidle\tnone\n"
    )
    sinfo = tmp_path / "sinfo"
    sinfo.write_text(SINFO)
    sinfo.chmod(0o755)
    lines = [line for line in STUCK.read_text().splitlines() if line.startswith("sinfo -h ")]
    outputs = [
        subprocess.run(
            ["/bin/sh", "-c", line],
            env={"PATH": f"{tmp_path}:/usr/bin:/bin", "ROWS": str(tmp_path / "rows")},
            capture_output=True, text=True, check=True,
        ).stdout
        for line in lines
    ]  # fmt: skip
    reasons, count = outputs
    assert [line.split("|")[0] for line in reasons.splitlines()] == [*persons, "none"]
    assert int(count) == len(persons)
