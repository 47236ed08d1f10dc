"""For how long the machines must stay that a growth policy starts. Pure; shared by the daemon and
the simulator.

Some reservations end their machines (EC2's capacity blocks), and no job starts on a machine that
ends before the job's time limit. A growth policy starts machines for no job in particular, so the
jobs that it counts tell how long the machines must stay.
"""

from __future__ import annotations

from itertools import islice

from slurm_elastic.policies.growth.capacity import AnyGrowth, Demand
from slurm_elastic.policies.growth.counted_once import counts_once


def stays(machines: int, growth: AnyGrowth, demand: Demand) -> tuple[int, ...]:
    """Return by machine for how long (s) it must stay after its boot. The first machines are for
    the first jobs; 0: for no job.

    Other machines that idle or boot may take some of these jobs. We do not know which jobs, so each
    new machine must also suit as many of the next jobs as there are such machines.
    """
    # If a policy counts a job once, most machines that boot are for jobs that it no longer counts.
    is_once = counts_once(growth)
    usable = max(demand.idle, demand.spare) if is_once else demand.idle + demand.booting
    jobs = demand.fresh or demand.queue
    limits = list(islice((job.limit for job in jobs for _ in range(job.nodes)), machines + usable))
    return tuple(max(limits[n : n + usable + 1], default=0) for n in range(machines))
