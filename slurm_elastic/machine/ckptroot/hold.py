"""Keeps a job that was stopped after its image ("held") until it is requeued.

Whether it was requeued only slurmctld knows: a node that is cut off from slurmctld may hold a job
that runs elsewhere by now.
"""

from __future__ import annotations

import time
from enum import Enum, auto

from . import job_state
from .job_state import JobState
from .run import Run
from .signals import Relay

_AGAIN = 10.0
"""Seconds until we ask slurmctld again about a held job that nobody has requeued."""
_ANSWER = 5.0
"""Seconds that slurmctld has for its answer."""


class Outcome(Enum):
    """What is to happen to a held job now."""

    STAYS = auto()
    IS_OVER = auto()
    GOES_ON = auto()


class Hold:
    """The hold of one run's job; ``until`` is None while there is none."""

    def __init__(self, run: Run, relay: Relay) -> None:
        self.until: float | None = None
        self._run = run
        self._relay = relay
        self._said = ""

    def begin(self) -> None:
        """Hold the job from now on, for as long as the site allows."""
        self.until = time.monotonic() + self._run.site.hold

    def end(self) -> None:
        """The job runs again."""
        self.until, self._said = None, ""

    def outcome(self) -> Outcome:
        """What slurmctld says to do; it is asked only when time is up or SIGTERM has come."""
        late = self.until is not None and time.monotonic() > self.until
        if not late and not self._relay.terminated:
            return Outcome.STAYS
        found, attempt = self.ask(), self._run.attempt
        if found is not None and found.ends(attempt):
            return Outcome.IS_OVER
        if self._relay.terminated and found is not None and found.preempted:
            return Outcome.IS_OVER  # once it has ended, Slurm itself requeues it
        # If slurmctld knows of no end, the user has sent SIGTERM himself.
        self._relay.terminated = self._relay.terminated and found is None
        if late and found is not None and found.runs(attempt):
            self._run.say(f"no requeue in {self._run.site.hold:.0f} s: the job goes on here")
            return Outcome.GOES_ON
        if late:
            self._stay(found)
        return Outcome.STAYS

    def _stay(self, found: JobState | None) -> None:
        """Ask again later; the reason is said once."""
        hold = self._run.site.hold
        self.until = time.monotonic() + min(hold, _AGAIN)
        said = f"slurmctld says {found.state}" if found else "slurmctld does not answer"
        if said != self._said:
            self._run.say(f"no requeue in {hold:.0f} s, but {said}: the job stays held")
            self._said = said

    def ask(self) -> JobState | None:
        """The job as slurmctld has it."""
        return job_state.ask(self._run.site, self._run.caller.job, _ANSWER)
