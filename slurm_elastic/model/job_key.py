"""The identity of a job. Pure.

A job's number alone is no identity: Slurm gives numbers again after MaxJobId, and begins at
FirstJobId after a slurmctld has lost its state. Each requeue changes SubmitTime, so number,
restarts and submit time name one run, and no time names the whole job (measured on 22.05).
"""

from __future__ import annotations

from msgspec import Struct


class JobKey(Struct, frozen=True, kw_only=True):
    """A job, as Slurm showed it during a run.

    ``uid``: -1 if it was not recorded. ``attempt``: the number of restarts by Slurm before that
    run. ``submitted``: the run's SubmitTime (Unix time), 0 if it was not recorded.
    """

    number: int
    uid: int = -1
    attempt: int = 0
    submitted: float = 0.0

    def may_follow(self, earlier: JobKey) -> bool:
        """Whether this may be the same job as ``earlier``, in the same run or in a later one.

        False is proven: the number was given to another job. After a restart of the job True is
        not proven, because Slurm keeps nothing over a requeue that another job could not have.
        """
        if self.number != earlier.number:
            return False
        if -1 not in (self.uid, earlier.uid) and self.uid != earlier.uid:
            return False
        if not self.submitted or not earlier.submitted or self.attempt > earlier.attempt:
            return True
        if self.attempt == earlier.attempt:
            # A requeue changes both. With the clock set back the time of another job may be older.
            return self.submitted == earlier.submitted
        # The restarts of a job never decrease, except if a person restores an older state of
        # slurmctld. Then the submit time is older as well.
        return self.submitted <= earlier.submitted
