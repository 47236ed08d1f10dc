"""The growth policies that the compiled engine knows itself (``grow.h``). It asks Python for all
others.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from slurm_elastic.policies.growth.capacity import (
    Bursts,
    GroupBursts,
    OnDemand,
    Ratio,
    SemiElastic,
    Size,
    SteadyStream,
)
from slurm_elastic.policies.money.bounds import UNBOUNDED

if TYPE_CHECKING:
    from slurm_elastic.simulate.core import _core
    from slurm_elastic.simulate.scaler import Grower

COMPILED = (OnDemand, Bursts, GroupBursts, Ratio, SemiElastic, SteadyStream)
"""In the order of the numbers in ``grow.h``, from 1 on."""
_SIZES = (Size.FIRST, Size.SUM, Size.BEST)


class JobFlags:
    """A set of jobs that C reads and writes, too: ``flags`` has a byte for each job. ``added``: the
    number of jobs that Python has added, minus the number that it has removed.
    """

    def __init__(self, jobs: int) -> None:
        self.flags = bytearray(jobs)
        self.added = 0

    def __contains__(self, job: object) -> bool:
        return isinstance(job, int) and bool(self.flags[job])

    def __bool__(self) -> bool:
        return 1 in self.flags

    def add(self, job: int) -> None:
        self.added += not self.flags[job]
        self.flags[job] = 1

    def discard(self, job: int) -> None:
        self.added -= self.flags[job]
        self.flags[job] = 0

    def update(self, jobs: Iterable[int]) -> None:
        """Add all these jobs."""
        for job in jobs:
            self.add(job)

    def difference_update(self, jobs: Iterable[int]) -> None:
        """Remove all these jobs."""
        for job in jobs:
            self.discard(job)

    def issuperset(self, jobs: Iterable[int]) -> bool:
        """Whether it has all these jobs."""
        return all(map(self.flags.__getitem__, jobs))


def grow_unasked(core: _core.Core, grower: Grower, jobs: int) -> JobFlags | None:
    """Give the growth policy to C, and share what the grower notes about jobs. Return the jobs
    whose machines start in turns; None if only Python knows the policy, or what bounds it.
    """
    policy, caps = grower.policy, grower.caps
    is_open = grower.times == UNBOUNDED and grower.money == UNBOUNDED
    if type(policy) not in COMPILED or grower.orders is not None or grower.lasting or not is_open:
        return None
    core.policy = COMPILED.index(type(policy)) + 1
    core.most_machines = -1 if caps.machines is None else caps.machines
    core.most_booting = -1 if caps.booting is None else caps.booting
    match policy:
        case Bursts():
            core.work_per_machine = policy.work_per_machine
        case GroupBursts():
            core.group = policy.group
        case Ratio():
            core.slots = policy.slots
        case SemiElastic():
            core.wait_limit, core.short_s = policy.wait_limit, policy.short
            core.size = _SIZES.index(policy.size)
        case SteadyStream():
            core.most_work, core.least_work = policy.most_work, policy.least_work
    covered, begun = JobFlags(jobs), JobFlags(jobs)
    grower.covered, grower.begun = covered, begun
    core.grow_by(covered.flags, begun.flags)
    return begun
