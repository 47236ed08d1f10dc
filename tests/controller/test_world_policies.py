"""The daemon with policies against everything that may go wrong, in any order (hypothesis).

All that holds without policies holds with them, and no job starves: a machine that never came up
counts as none.
"""

from __future__ import annotations

from slurm_elastic.config import Timings
from slurm_elastic.config.sections.policies import Budget, CloudPolicies, SitePolicies
from slurm_elastic.model.cluster import Limits, Location
from slurm_elastic.model.exclusion import CAPACITY
from slurm_elastic.policies.nodes.node_state import Phase, is_drained, phase
from slurm_elastic.providers.fake.settings import FakeCloud
from tests.controller.chaos import draw
from tests.controller.test_world_machine import Chaos, WatchedWorld
from tests.controller.world import SHAPE


class PolicyChaos(Chaos):
    growth = "on_demand"

    def make_world(self) -> WatchedWorld:
        clouds = (
            FakeCloud(name="onp", location=Location.ON_PREMISES, types=SHAPE, stock=None),
            FakeCloud(
                name="pub", location=Location.PUBLIC, types=SHAPE,
                limits=Limits(dollars_per_hour=0.25),
                policies=CloudPolicies(billing_increment=3600.0, release="delayed(before_end=180)",
                                       budget=Budget(per_month=1e6)),
            ),
        )  # fmt: skip
        return WatchedWorld(
            clouds=clouds,
            timings=Timings(suspend_time=4200, suspend_timeout=30, resume_timeout=600),
            policies=SitePolicies(
                growth=self.growth, release="idle(seconds=120)", poll_interval=10.0
            ),
        )

    def unrest(self, held: bool) -> str:
        """Powered-down nodes stay held for the policy, and for no other cause."""
        w = self.world
        for name in w.site.pool_of:
            node = w.slurm.node(name)
            if phase(node) is Phase.POWERED_DOWN and not is_drained(node):
                return f"{name} is not kept from Slurm"
        rows = {row.scope for row in w.ledger.exclusions.holds() if held or row.kind != CAPACITY}
        return self.trouble(rows, held=held)


def test_chaos_with_policies() -> None:
    draw(PolicyChaos, examples=40, steps=25)
