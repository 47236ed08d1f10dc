"""Histories for the simulator's tests, and its rule written down plainly."""

from __future__ import annotations

from hypothesis import strategies as st

from slurm_elastic.simulate.histories.jobs import Job, Jobs

job = st.builds(
    Job,
    number=st.just(1),
    submit=st.integers(0, 400),
    run=st.integers(0, 120),
    limit=st.integers(1, 200),
    procs=st.integers(1, 8),
    user=st.just(1),
    partition=st.just(1),
    memory=st.just(0),
    gpus=st.just(0),
    nodes=st.just(1),
    account=st.just(-1),
)
histories = st.lists(job, min_size=1, max_size=30).map(Jobs)


def plain(jobs: Jobs, nodes: int, reservations: int = 1, *, backfill: bool = True) -> list[int]:
    """Starts by first come, first served with EASY backfill, each look from scratch."""
    waiting: list[int] = []
    running: dict[int, int] = {}
    starts = [-1] * len(jobs)
    times = sorted(set(jobs.submit))
    arrived = 0
    while times:
        now = times.pop(0)
        running = {j: end for j, end in running.items() if end > now}
        while arrived < len(jobs) and jobs.submit[arrived] <= now:
            waiting.append(arrived)
            arrived += 1
        taken: list[tuple[int, int, int]] = [
            (now, max(starts[j] + jobs.limit[j], now + 1), jobs.procs[j]) for j in running
        ]
        blocked = 0
        for j in list(waiting):
            if blocked and not backfill:
                break
            need, limit = jobs.procs[j], jobs.limit[j]
            if _free(taken, nodes, now, now + limit) >= need and _up(running, jobs, need, nodes):
                starts[j] = now
                taken.append((now, now + limit, need))
                waiting.remove(j)
                running[j] = now + jobs.run[j]
                times = sorted({*times, running[j]})
            elif blocked < reservations:
                blocked += 1
                at = min(
                    t
                    for t in [now, *(end for _, end, _ in taken)]
                    if t >= now and _free(taken, nodes, t, t + limit) >= need
                )
                taken.append((at, at + limit, need))
    return starts


def _up(running: dict[int, int], jobs: Jobs, need: int, nodes: int) -> bool:
    return sum(jobs.procs[j] for j in running) + need <= nodes


def _free(taken: list[tuple[int, int, int]], nodes: int, begin: int, end: int) -> int:
    points = [begin, *(t for t, _, _ in taken if begin < t < end)]
    return min(nodes - sum(n for b, e, n in taken if b <= t < e) for t in points)
