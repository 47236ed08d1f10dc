"""Machines by what they cost: none is bought for a node that nobody waits for, and one whose node
is powered down ends soon.
"""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatch
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.chaos.fakes import Cloud
    from tests.chaos.stage import Stage

LATE = 120.0
"""Seconds, at most, from the last look at Slurm to a purchase, with slow calls between."""
ENDS = 300.0
"""Seconds for all rounds from a powered-down node to the end of its machine, and a back-off."""
DAEMON = "elasticd"


class Ends:
    """Neither is judged where the world lies: a service may see something else than what is so."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._slurm_answers_since = 0.0
        self._able_since: dict[str, float] = {}

    def look(self) -> Iterator[str]:
        """The machines that should have ended long ago."""
        stage, now = self._stage, self._stage.sched.now
        if stage.slurm.trouble:
            self._slurm_answers_since = now
        for name, cloud in stage.clouds.items():
            if not self._can_end(cloud):
                self._able_since[name] = now
        late = [
            one
            for one in stage.running()
            if "POWERED_DOWN" in stage.slurm.node(one.node).states
            and now - max(stage.since[one.node], self._able_since.get(one.cloud, 0.0)) > self.bound
        ]
        found = stage.books.rows() if late and stage.lies is None else None
        for one in late if found else ():
            row = found[0].get(one.id) if found else None
            if row is not None and row.ended is None:
                yield f"{one.id} runs, and {one.node} is powered down since {stage.since[one.node]:.0f} s"

    @property
    def bound(self) -> float:
        """Seconds from a powered-down node to the end of its machine, by the settings of the site."""
        timings = self._stage.config.timings
        looks = 2 * float(timings.reconcile_interval) + float(timings.orphan_timeout)
        return ENDS + looks + float(timings.suspend_timeout)

    def _can_end(self, cloud: Cloud) -> bool:
        """Whether slurm-elasticd acts, reads Slurm, writes its records and may call that cloud."""
        stage = self._stage
        if stage.ledger is None or not stage.sched.lives(stage.acting(DAEMON)):
            return False
        if stage.ledger.end_only or stage.disk.trouble or stage.slurm.trouble:
            return False
        fails = any(fnmatch("terminate", call) for call, _ in cloud._faults)
        return not (fails or cloud.slow or stage.files.writers)

    def not_awaited(self, node: str) -> str:
        """Why a machine for the node serves nobody: Slurm does not power it up, for long enough to
        know it; "" if it does.
        """
        stage, now = self._stage, self._stage.sched.now
        states = stage.slurm.node(node).states
        since = max(stage.since[node], self._slurm_answers_since)
        is_known = stage.lies is None and node not in stage.forgotten and stage.pair is None
        if "POWERING_UP" in states or now - since < LATE or not is_known:
            return ""
        return f"a machine is bought for {node}, which is {' '.join(sorted(states))} for {now - since:.0f} s"
