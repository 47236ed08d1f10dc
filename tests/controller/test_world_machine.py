"""The whole daemon against everything that may go wrong, in any order (hypothesis).

At every moment: never two machines bought for one node, never a machine ended whose node Slurm
has up or on its way up, nobody else's machine touched, no limit passed. And when the faults end,
the world comes to rest: wanted nodes have one machine, the others none, nothing stays open.
"""

from __future__ import annotations

import logging
import os
import signal
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from types import SimpleNamespace
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from slurm_elastic.base import faults
from slurm_elastic.base.errors import (
    AuthError,
    CapacityError,
    InstanceNotFound,
    QuotaError,
    SlurmError,
    TransientError,
)
from slurm_elastic.model.cluster import Instance, InstanceState
from slurm_elastic.model.exclusion import CAPACITY
from slurm_elastic.model.slurm import SlurmNode
from slurm_elastic.policies.nodes.node_state import Phase, phase
from slurm_elastic.state.ledger import Ledger, Machine
from tests.controller.chaos import draw
from tests.controller.slurmctld import Slurmctld
from tests.controller.world import ONP, PUB, T0, Killed, World

DEAD = SlurmError(("sinfo",), 1, "Unable to contact slurm controller")
ADMIN = "fan is broken"
LIMIT = 4
DOLLARS = 0.25
HOUR = 3600.0


class WatchedSlurm(Slurmctld):
    """Asks the world before a node is changed."""

    world: WatchedWorld

    def update_nodes(
        self,
        names: Sequence[str],
        *,
        state: str | None = None,
        reason: str | None = None,
        address: str | None = None,
    ) -> None:
        for name in names:
            self.world.judge_update(self.node(name), state or "", reason)
        super().update_nodes(names, state=state, reason=reason, address=address)


class WatchedWorld(World):
    excused: set[str]

    def make_slurm(self, *args: Any, **settings: Any) -> Slurmctld:
        slurm = WatchedSlurm(*args, **settings)
        slurm.world = self
        return slurm

    def make_ledger(self) -> Ledger:
        """It asks before a machine's end is decided."""
        ledger = Ledger(self.dir / "ledger.db")
        suspending = ledger.machines.record_ending

        def watched(cloud: str, ids: Sequence[str], why: str, now: float) -> None:
            rows = {m.instance.id: m for m in ledger.machines.live() if m.instance.cloud == cloud}
            for id_ in ids:
                if id_ in rows and rows[id_].is_wanted:
                    self.judge(rows[id_].instance, why)
            suspending(cloud, ids, why, now)

        ledger.machines.record_ending = watched  # type: ignore[method-assign]
        return ledger

    def judge(self, doomed: Instance, why: str) -> None:
        """Only what Slurm has down, what booted before its node was asked for (slurmctld waits for
        another), or what another machine of the node stands in for.
        """
        where = phase(self.slurm.node(doomed.node))
        others = [i for i in self.machines_of(doomed.node) if i != doomed.id]
        down = where in (Phase.POWERING_DOWN, Phase.POWERED_DOWN)
        old = where is Phase.POWERING_UP and doomed.launched <= self.slurm.asked(doomed.node)
        assert down or old or others, f"{doomed.id} of {doomed.node} ({where}) is ended: {why}"

    def judge_update(self, node: SlurmNode, state: str, reason: str | None) -> None:
        """No job loses a machine that lives, and an admin's drain outlives us."""
        serving = [
            i.id for i in self.alive() if i.node == node.name and i.address == node.address
        ]  # fmt: skip
        up = phase(node) is Phase.UP and "DOWN" not in node.states
        if state.lower() in ("down", "power_down_force") and up and serving:
            assert self.excused.intersection(serving), f"{node.name} is given up: {reason}"
        if "DRAIN" in node.states and node.reason == ADMIN:
            assert (state, reason) == ("DOWN", ADMIN), f"{node.name}: {state} {reason}"


class Chaos(RuleBasedStateMachine):
    @initialize()
    def build(self) -> None:
        logging.disable(logging.CRITICAL)  # hypothesis runs hours of it
        self.env: dict[str, str] = {}
        faults.os = SimpleNamespace(environ=self.env)  # type: ignore[assignment]
        faults.signal = SimpleNamespace(  # type: ignore[assignment]
            SIGKILL=signal.SIGKILL, raise_signal=self._die
        )
        self.jobs = 0
        self.lost = self.faulty = False
        self.world = self.make_world()
        self.excused = self.world.excused = set()
        self._add_foreign()

    def make_world(self) -> WatchedWorld:
        return WatchedWorld()

    def _add_foreign(self) -> None:
        self.foreign = {}
        for cloud, account in self.world.accounts.items():
            theirs = Instance(
                id=f"{cloud}-theirs", cloud=cloud, node="pub1", generation="g0",
                instance_type="small", zone="zone-1", market="spot", price=0.03,  # type: ignore[arg-type]
                state=InstanceState.RUNNING, launched=T0,
            )  # fmt: skip
            account.add_foreign(theirs, owner="somebody-else")
            self.foreign[cloud] = theirs

    def _die(self, _signal: int) -> None:
        self.env.clear()
        raise Killed

    def teardown(self) -> None:
        try:
            if hasattr(self, "world"):
                self.come_to_rest()
        finally:
            logging.disable(logging.NOTSET)
            faults.os, faults.signal = os, signal  # type: ignore[attr-defined]
            if hasattr(self, "world"):
                self.world.close()

    # what Slurm and its users do

    @rule(pool=st.sampled_from((ONP, PUB)), count=st.integers(1, 2), requeue=st.booleans())
    def submit(self, pool: Sequence[str], count: int, requeue: bool) -> None:
        self.jobs += 1
        cloud = "onp" if pool == ONP else "pub"
        self.world.slurm.submit(
            self.jobs, pool, count, requeue=requeue, partitions=(cloud,), node_count=count
        )
        self.world.advance(5)

    @rule(data=st.data())
    def job_ends(self, data: st.DataObject) -> None:
        queue = self.world.slurm.queue()
        if queue:
            self.world.slurm.finish(data.draw(st.sampled_from(sorted(queue))))

    @rule(seconds=st.sampled_from((1, 10, 45, 130, 400)))
    def advance(self, seconds: float) -> None:
        self.world.advance(seconds, step=5.0 if seconds < 100 else 10.0)

    @rule()
    def an_hour_passes(self) -> None:
        self.world.advance(HOUR, step=15.0)

    @rule(data=st.data())
    def slurm_runs_a_program_again(self, data: st.DataObject) -> None:
        if self.world.requests:
            self.run_again(*data.draw(st.sampled_from(self.world.requests[-4:])))

    def run_again(self, kind: str, nodes: Sequence[str], jobs: Mapping[int, Sequence[str]]) -> None:
        """A suspend only for what is not asked for: slurmctld runs none for a node that boots."""
        w = self.world
        if kind != "resume":
            nodes = [n for n in nodes if phase(w.slurm.node(n)) is not Phase.POWERING_UP]
        if nodes:
            w.program(kind, nodes, jobs, received=w.now)

    @rule()
    def a_program_fails(self) -> None:
        """A request is lost: the disk was full."""
        for file in sorted((self.world.dir / "requests").glob("*.json"))[:1]:
            file.unlink()

    @rule(node=st.sampled_from((*ONP, *PUB)))
    def admin_drains(self, node: str) -> None:
        self.world.slurm.set_state(node, "drain")
        self.world.slurm.set_node(node, reason=ADMIN)

    @rule(broken=st.booleans())
    def slurm_dies_or_comes_back(self, broken: bool) -> None:
        self.world.slurm.broken = DEAD if broken else None

    # what clouds do

    @rule(
        cloud=st.sampled_from(("onp", "pub")),
        error=st.sampled_from(
            (CapacityError, QuotaError, AuthError, TransientError, InstanceNotFound)
        ),
        call=st.sampled_from(("launch", "offers", "instances", "terminate")),
        times=st.integers(1, 12),
    )
    def cloud_fails(self, cloud: str, error: type[Any], call: str, times: int) -> None:
        if (call, error) != ("terminate", InstanceNotFound):  # that one is an answer, not a fault
            self.world.clouds[cloud].fail_next(error, times, call)
            self.faulty = True

    @rule(cloud=st.sampled_from(("onp", "pub")), times=st.integers(1, 12))
    def answers_get_lost(self, cloud: str, times: int) -> None:
        self.world.clouds[cloud].lose_answer_next(times)

    @rule(cloud=st.sampled_from(("onp", "pub")), seconds=st.sampled_from((0, 20, 100, 250)))
    def fresh_machines_are_hidden(self, cloud: str, seconds: float) -> None:
        self.world.clouds[cloud].visible_after = seconds

    @rule(cloud=st.sampled_from(("onp", "pub")), count=st.sampled_from((0, 1, None)))
    def stock(self, cloud: str, count: int | None) -> None:
        self.world.clouds[cloud].limit("*", count)

    @rule(data=st.data())
    def machine_dies(self, data: st.DataObject) -> None:
        alive = self.world.alive()
        if alive:
            victim = data.draw(st.sampled_from(alive))
            self.world.clouds[victim.cloud].take(victim.id)

    @rule(data=st.data(), seconds=st.sampled_from((30, 100, 200)))
    def a_fresh_machine_is_not_shown(self, data: st.DataObject, seconds: float) -> None:
        """Where a machine was shown already, it only is for less than N reads."""
        now = self.world.now
        fresh = [
            m for a in self.world.accounts.values() for m in a.machines.values()
            if m.owner == "uuid-1" and now - m.instance.launched < 40
        ]  # fmt: skip
        if fresh:
            victim = data.draw(st.sampled_from(fresh))
            known = {m.instance.id for m in self._rows() if m.last_seen > m.instance.launched}
            if victim.instance.id not in known:
                victim.visible_from = now + seconds
                if self.lost and not self._remembered(victim.instance):
                    self.excused.add(victim.instance.id)

    @rule(
        pool=st.sampled_from((ONP, PUB)),
        count=st.integers(1, 2),
        lost=st.sampled_from((0, 1, 30)),
        hidden=st.sampled_from((0, 30, 250)),
        then=st.sampled_from((None, CapacityError, AuthError, TransientError, InstanceNotFound)),
        wait=st.sampled_from((5, 60, 240)),
    )
    def a_launch_goes_wrong(
        self,
        pool: Sequence[str],
        count: int,
        lost: int,
        hidden: float,
        then: type[Any] | None,
        wait: float,
    ) -> None:
        cloud = self.world.clouds["onp" if pool == ONP else "pub"]
        cloud.visible_after = hidden
        cloud.lose_answer_next(lost)
        self.submit(pool, count, requeue=True)
        cloud._answers_to_lose = 0
        if then is not None:
            cloud.fail_next(then, 3, "launch")
        self.world.advance(wait, step=10.0)

    # what happens to the daemon

    @rule(point=st.sampled_from(faults.POINTS))
    def dies_at(self, point: str) -> None:
        self.env["SLURM_ELASTIC_FAULT"] = point

    @rule()
    def killed_now(self) -> None:
        if self.world.daemon is not None:
            self.world.stop()

    @precondition(lambda self: self.world.daemon is None)
    @rule()
    def starts(self) -> None:
        """One that finds the ledger of a first one which has read no cloud yet cannot know it."""
        if self.lost:
            self.excused |= {i.id for i in self.world.alive()} - {
                r.instance.id for r in self._rows()
            }
        self.world.start()

    @rule(again=st.booleans())
    def ledger_is_lost(self, again: bool) -> None:
        """Nobody can know then of machines that are hidden, or whose end was decided."""
        w = self.world
        if w.daemon is None:
            w.start()
        hidden = {
            id_ for a in w.accounts.values() for id_, m in a.machines.items()
            if m.visible_from > w.now
        }  # fmt: skip
        doomed = {m.instance.id for m in w.ledger.machines.live() if m.retired_at is not None}
        self.excused |= hidden | doomed
        self.lost = True
        if again and w.requests:
            self.run_again(*w.requests[-1])
        w.lose_ledger()

    # what must always hold

    @invariant()
    def one_machine_a_node(self) -> None:
        if not hasattr(self, "world"):
            return
        count = Counter(i.node for i in self._kept())
        assert not [n for n, c in count.items() if c > 1], self._kept()

    def _remembered(self, instance: Instance) -> bool:
        """Whether the ledger has it, or the launch that may have made it."""
        with self._ledger() as ledger:
            launches = {row.generation for row in ledger.launches.open()}
        ids = {m.instance.id for m in self._rows()}
        return instance.id in ids or instance.generation in launches

    def _kept(self) -> list[Instance]:
        """Machines that are not being ended."""
        doomed = {
            m.instance.id
            for m in self._rows()
            if not m.is_wanted
        }  # fmt: skip
        return [i for i in self.world.alive() if i.id not in doomed and i.id not in self.excused]

    def _ledger(self) -> closing[Ledger]:
        """Also while no daemon runs."""
        return closing(Ledger(self.world.dir / "ledger.db"))

    def _rows(self) -> Sequence[Machine]:
        with self._ledger() as ledger:
            return ledger.machines.live(ended_since=0.0)

    @invariant()
    def nobody_elses_machine_is_touched(self) -> None:
        if hasattr(self, "world"):
            for cloud, theirs in self.foreign.items():
                assert theirs.id in self.world.accounts[cloud].alive()

    @invariant()
    def limits_hold(self) -> None:
        """Open intents count whole, as their machines may exist."""
        if not hasattr(self, "world"):
            return
        alive = [i for i in self.world.alive() if i.id not in self.excused]
        started = Counter(i.generation for i in alive)
        with self._ledger() as ledger:
            intents = ledger.launches.open()
        owed = {"onp": 0, "pub": 0}
        for row in intents:
            owed[row.cloud] += max(len(row.nodes) - started[row.generation], 0)
        assert len(alive) + sum(owed.values()) <= LIMIT
        public = sum(i.cloud == "pub" for i in alive) + owed["pub"]
        # Of an adopted machine the worst price is only known while the cloud tells its offers.
        assert public * 0.10 <= DOLLARS or (self.lost and self.faulty)

    @invariant()
    def an_admins_drain_stays(self) -> None:
        if not hasattr(self, "world"):
            return
        for name in (*ONP, *PUB):
            node = self.world.slurm.node(name)
            if "DRAIN" in node.states:
                assert node.reason == ADMIN or node.reason.startswith("slurm-elastic:")

    # and in the end

    def come_to_rest(self) -> None:
        w = self.world
        self.env.clear()
        w.slurm.broken = None
        for cloud in w.clouds.values():
            cloud.heal()
            cloud.visible_after = 0.0
            cloud.limit("*", None)
        for name in (*ONP, *PUB):
            if w.slurm.node(name).reason == ADMIN:
                w.slurm.set_state(name, "resume")
        for pool in (ONP, PUB):  # more than one may have no room
            for job in [j for j in sorted(w.slurm.queue()) if w.slurm.wish(j) == pool][1:]:
                w.slurm.finish(job)
        if w.daemon is None:
            w.start()
        self.wait_until_at_rest(held=True)
        for job in w.slurm.queue():
            w.slurm.finish(job)
        w.advance(w.config.timings.suspend_time + 10)
        self.wait_until_at_rest(held=False)
        assert w.alive() == []

    def wait_until_at_rest(self, *, held: bool) -> None:
        deadline = self.world.now + 4 * HOUR
        while (trouble := self.unrest(held)) and self.world.now < deadline:
            self.world.advance(30, step=10.0)
        assert not trouble, trouble

    def unrest(self, held: bool) -> str:
        """The first thing that is not as it should be; nodes beyond a limit may be ``held``."""
        w = self.world
        rows = {row.scope for row in w.ledger.exclusions.holds()} if held else set()
        return self.trouble(rows, held=held)

    def trouble(self, rows: Collection[str], *, held: bool) -> str:
        w = self.world
        waiting = [j.id for j in w.slurm.queue().values() if "RUNNING" not in j.states]
        if waiting:
            return f"jobs wait: {waiting}"
        for name in (*ONP, *PUB):
            node, machines = w.slurm.node(name), w.machines_of(name)
            where = phase(node)
            drained = "DRAIN" in node.states and name not in rows
            if "DOWN" in node.states or drained or node.reason == ADMIN:
                return f"{name} is out: {sorted(node.states)} {node.reason}"
            if where not in (Phase.UP, Phase.POWERED_DOWN) or len(machines) != (where is Phase.UP):
                return f"{name} is {where} with machines {machines}"
        known = sorted(m.instance.id for m in w.ledger.machines.live())
        alive = sorted(i.id for i in w.alive())
        if known != alive:
            return f"the ledger has {known}, the clouds have {alive}"
        full = [row for row in w.ledger.exclusions.holds() if row.kind == CAPACITY and not held]
        left = [*w.ledger.launches.open(), *full]
        return f"left: {left}" if left or w.spool.count() else ""


def test_chaos() -> None:
    draw(Chaos, examples=150, steps=30)
