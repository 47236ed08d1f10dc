"""Keep a job that was stopped after its image ("held") until it is requeued.

Only slurmctld knows whether it was requeued. A node that lost the connection to slurmctld may hold
a job that already runs on another node.
"""

from __future__ import annotations

import time
from enum import Enum, auto

from . import job_state
from .job_state import JobState
from .run import Run
from .signals import Relay

_ASK_AGAIN_S = 10.0
"""Seconds until we ask slurmctld again about a held job that was not requeued."""
_ANSWER_TIMEOUT_S = 5.0
"""Seconds that slurmctld has for its answer."""
VERIFY_RATE = 16 << 20
"""Bytes per second. The head verifies an image before the requeue, and gives up an image that it
reads more slowly (``checkpointers/node_helper_client.py`` has the same number).
"""


UNFIT_S = 3600.0
"""Seconds for which a job waits for another node at least. The head looks for such jobs
every 30 s (``ckptman/unfit_nodes.py``), but it may be away for a while. Without it the job
would lose the work that its image has.
"""
RENEWED_S = 120.0
"""Seconds of a hold that the head renews. It does so once a minute."""


class Outcome(Enum):
    """The decision about a held job."""

    STAYS = auto()
    IS_OVER = auto()
    GOES_ON = auto()


class JobHold:
    """The hold of one run's job. ``until`` (monotonic) is None if the job is not held."""

    def __init__(self, run: Run, relay: Relay) -> None:
        self.until: float | None = None
        self._run = run
        self._relay = relay
        self._last_reason = ""
        self._verify_s = 0.0
        self._at_least_s = 0.0

    def begin(self, image_bytes: int = 0, at_least_s: float = 0.0) -> None:
        """Hold the job from now on: as long as the site allows, or ``at_least_s``, and before that
        as long as the head may read its new image of that size.
        """
        self._verify_s, self._at_least_s = image_bytes / VERIFY_RATE, at_least_s
        self.until = time.monotonic() + self._hold_s

    @property
    def _hold_s(self) -> float:
        return max(self._run.site.hold, self._at_least_s) + self._verify_s

    def extend(self) -> None:
        """Hold the job for at least RENEWED_S more, because the head still reads its image."""
        if self.until is not None:
            self.until = max(self.until, time.monotonic() + RENEWED_S)

    def end(self) -> None:
        """End the hold, because the job runs again."""
        self.until, self._last_reason = None, ""

    def outcome(self) -> Outcome:
        """Return the decision. slurmctld is asked only when the time is up or SIGTERM has come."""
        is_late = self.until is not None and time.monotonic() > self.until
        if not is_late and not self._relay.terminated:
            return Outcome.STAYS
        state, attempt = self.ask(), self._run.attempt
        if state is not None and state.ends(attempt):
            return Outcome.IS_OVER
        if self._relay.terminated and state is not None and state.preempted:
            return Outcome.IS_OVER  # Slurm requeues it when this run has ended
        # If slurmctld reports no end of the run, the user has sent the SIGTERM.
        self._relay.terminated = self._relay.terminated and state is None
        if is_late and state is not None and state.runs(attempt):
            self._run.report(f"no requeue in {self._hold_s:.0f} s: the job continues here")
            return Outcome.GOES_ON
        if is_late:
            self._stay(state)
        return Outcome.STAYS

    def _stay(self, state: JobState | None) -> None:
        """Hold the job longer, and ask again later. Log each reason once."""
        self.until = time.monotonic() + min(self._run.site.hold, _ASK_AGAIN_S)
        reason = f"slurmctld says {state.state}" if state else "slurmctld does not answer"
        if reason != self._last_reason:
            self._run.report(
                f"no requeue in {self._hold_s:.0f} s, but {reason}: the job stays held"
            )
            self._last_reason = reason

    def ask(self) -> JobState | None:
        """Return the job's state in slurmctld, or None."""
        return job_state.ask(self._run.site, self._run.caller.job, _ANSWER_TIMEOUT_S)
