"""``release: daytime(begin=8, end=18)``: machines that are idle during these hours (UTC) stay until
their end, because people submit again. At other times they go after five idle minutes.
"""

from __future__ import annotations

from typing import ClassVar

from slurm_elastic.config.basics.policy_texts import PolicyKind
from slurm_elastic.policies.growth.release import IdleMachine, OwnRelease
from slurm_elastic.policies.policy_text import Whole

DAY = 86400
IDLE = 300


class Daytime(OwnRelease, frozen=True, tag="daytime"):
    begin: Whole = 8
    end: Whole = 18

    longest: ClassVar[int] = 12 * 3600

    def leaves_at(self, machine: IdleMachine) -> int:
        midnight = machine.now - machine.now % DAY
        if self.begin * 3600 <= machine.now - midnight < self.end * 3600:
            return midnight + self.end * 3600
        return machine.since + IDLE


POLICY = PolicyKind(policy=Daytime, api=1)
