"""``policy: first_of(on_notice, nightly(hour=2))``: each job is saved once a day, at that hour (UTC),
such as before the nightly maintenance of a file server.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from slurm_elastic.config.basics.policy_texts import PolicyKind
from slurm_elastic.policies.checkpoint.own import OwnCheckpoint
from slurm_elastic.policies.checkpoint.situation import Situation

DAY = 86400
Hour = Annotated[int, Meta(ge=0, le=23, description="an hour from 0 to 23")]


class Nightly(OwnCheckpoint, frozen=True, tag="nightly"):
    hour: Hour = 2

    def save_now(self, situation: Situation) -> str | None:
        is_saved = situation.since >= self._last(situation.now)
        return None if is_saved else f"the save of {self.hour:02}:00 UTC"

    def look_again(self, situation: Situation) -> float:
        return self._last(situation.now) + DAY

    def _last(self, now: float) -> float:
        """The last time at which the clock showed the hour."""
        return now - (now - self.hour * 3600) % DAY


POLICY = PolicyKind(policy=Nightly, api=1)
