"""Budgets of accounts against everything that may go wrong, in any order (hypothesis).

All that holds without holds with them; what is paid is paid by somebody, once; and when the account
has money again, its jobs have what they had and run.
"""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule
from msgspec.structs import replace

from slurm_elastic.config import Timings
from slurm_elastic.config.sections.policies import Budget, SitePolicies
from slurm_elastic.controller.launching.budget import read_payer_spending, read_spending
from tests.controller.chaos import draw
from tests.controller.test_world_machine import HOUR, Chaos, WatchedWorld
from tests.controller.world import ONP, PUB

BOTH = (*ONP, *PUB)
TIGHT, RICH = Budget(per_day=0.01), Budget(per_day=1e6)
"""Six minutes of a machine; and no bound."""


def policies(growth: str, physics: Budget) -> SitePolicies:
    budgets = {"physics": physics, "chemistry": RICH, "(none)": RICH}
    return SitePolicies(
        poll_interval=10.0,
        growth=growth,
        release="idle(seconds=120)",
        budget=RICH,
        account_budgets=budgets,
    )


class AccountChaos(Chaos):
    growth = "slurm"

    def make_world(self) -> WatchedWorld:
        world = WatchedWorld(
            timings=Timings(suspend_time=4200, suspend_timeout=30, resume_timeout=600),
            policies=policies(self.growth, TIGHT),
        )
        for partition, nodes in (("onp", ONP), ("pub", PUB)):
            for name in nodes:
                world.slurm.set_node(name, partitions=(partition,))
        self.own: dict[int, tuple[str, ...]] = {}
        return world

    @rule(
        account=st.sampled_from(("physics", "chemistry")),
        both=st.booleans(),
        requeue=st.booleans(),
        count=st.integers(1, 2),
    )
    def submit_for(self, account: str, both: bool, requeue: bool, count: int) -> None:
        self.jobs += 1
        self.own[self.jobs] = ("onp", "pub") if both else ("pub",)
        self.world.slurm.submit(
            self.jobs, BOTH if both else PUB, count, requeue=requeue, account=account,
            partitions=self.own[self.jobs], node_count=count,
        )  # fmt: skip
        self.world.advance(5)

    @invariant()
    def somebody_pays_each_dollar(self) -> None:
        if not hasattr(self, "world") or self.world.daemon is None:
            return
        w = self.world
        whole = read_spending(w.config, w.ledger, w.now)[""]
        parts = read_payer_spending(w.config, w.ledger, w.now).values()
        assert sum(own.day for own in parts) == pytest.approx(whole.day, abs=1e-6)
        assert sum(own.month for own in parts) == pytest.approx(whole.month, abs=1e-6)

    def come_to_rest(self) -> None:
        w = self.world
        if w.daemon is not None:
            w.stop()
        w.slurm.broken = None
        w.config = replace(w.config, policies=policies(self.growth, RICH))
        for job in [j for j in sorted(w.slurm.queue()) if w.slurm.wish(j) == BOTH]:
            w.slurm.finish(job)  # pools are filled up to one job each
        for job in [j for j in sorted(w.slurm.queue()) if j in self.own][1:]:
            w.slurm.finish(job)
        self.lift_forgotten_begin_times()
        super().come_to_rest()

    def lift_forgotten_begin_times(self) -> None:
        """A lost ledger has also lost that a begin time was ours. Slurm has it, and starts the job
        then; the next day is not waited for here.
        """
        w = self.world
        with self._ledger() as ledger:
            ours = {row.key.number for row in ledger.changed_jobs.all()}
        for job in w.slurm.queue().values():
            if job.start > w.now and job.id not in ours and "PENDING" in job.states:
                assert job.start <= w.now + 24 * HOUR
                w.slurm.start_now(job.id)

    def unrest(self, held: bool) -> str:
        if trouble := super().unrest(held):
            return trouble
        lost = [j.id for j in self.world.slurm.queue().values() if j.id in self.own
                and j.partitions != self.own[j.id] and "RUNNING" not in j.states]  # fmt: skip
        return f"lost their partitions: {lost}" if lost else ""


def test_chaos_with_budgets_of_accounts() -> None:
    draw(AccountChaos, examples=40, steps=25)
