"""``growth: weekend(weekday=2)``: on Saturdays and Sundays (UTC) a machine for each node that waits,
on other days no more than ``weekday`` machines in all.
"""

from __future__ import annotations

from slurm_elastic.config.basics.policy_texts import PolicyKind
from slurm_elastic.policies.growth.capacity import Demand, Growth, OwnGrowth
from slurm_elastic.policies.policy_text import Machines

DAY = 86400
SATURDAY = 5


class Weekend(OwnGrowth, frozen=True, tag="weekend"):
    weekday: Machines = 2

    def grow(self, demand: Demand) -> Growth | None:
        lacking = sum(job.nodes for job in demand.queue) - demand.idle - demand.booting
        day = (demand.now // DAY + 3) % 7  # 1 January 1970 was a Thursday
        if day < SATURDAY:
            lacking = min(lacking, self.weekday - demand.up)
        if lacking <= 0:
            return None
        when = "at the weekend" if day >= SATURDAY else f"at most {self.weekday} on weekdays"
        return Growth(lacking, f"{len(demand.queue)} jobs wait, {when}")


POLICY = PolicyKind(policy=Weekend, api=1)
