"""Forecast when a job would start in each partition, and its cost.

The forecast uses Slurm's queue and the ledger's boots, prices and interruptions. It simulates, so
``pricing`` imports this module by its name, and never in slurm-elasticd.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from msgspec.structs import replace

from slurm_elastic.base.billing import billed_dollars, paid_seconds
from slurm_elastic.base.hostlist import compress, expand
from slurm_elastic.config import Config, domain_pools
from slurm_elastic.config.node_limits import max_cloud_nodes, max_pool_nodes
from slurm_elastic.config.pool_rules import on_demand_prices, rules_of, traffic_terms
from slurm_elastic.model.cluster import Location, Market, Pool
from slurm_elastic.model.memory import Machine
from slurm_elastic.model.slurm import SlurmJob, SlurmNode
from slurm_elastic.policies.checkpoint.checkpoint import DEFAULT_MTTI, observed_mtti
from slurm_elastic.policies.checkpoint.exposure import chance, with_saves, without_saves
from slurm_elastic.policies.launch.habits import RequestedJob
from slurm_elastic.policies.launch.job_data import counted_data
from slurm_elastic.policies.launch.verdict import could_run, need
from slurm_elastic.policies.launch.waiting import is_counted
from slurm_elastic.policies.nodes.node_state import Phase, is_down, is_drained, phase
from slurm_elastic.simulate.studies import start_forecast
from slurm_elastic.simulate.studies.start_forecast import Present, RunningJob, quantile
from slurm_elastic.watch.door.pricing import Moment
from slurm_elastic.watch.door.questions import PartitionPrice, PriceAsk

NO_LIMIT_S = 86400
"""The time limit assumed for a job if neither it nor its partition has one."""
MOST_WAITING = 3000  # a forecast simulates at most this many waiting jobs, the first ones
MOST_TASKS = 200
_CPUS = re.compile(r"(?:^|,)cpu=(\d+)")
_SHARES = (0.1, 0.5, 0.9)


def forecasts_of(config: Config, ask: PriceAsk, moment: Moment) -> tuple[PartitionPrice, ...]:
    """One forecast for each partition of the job and each of its pools that could run the job."""
    own_partitions = {cloud.partition_name for cloud in config.clouds}
    named_nodes = [moment.nodes[name] for name in ask.job.required if name in moment.nodes]
    if away := [node.name for node in named_nodes if not _takes_jobs(node)]:
        why = f"{compress(away)}, which the job names, is out of service"
        return tuple(
            PartitionPrice(partition=partition, nodes=ask.job.node_count, why=why)
            for partition in dict.fromkeys(ask.job.partitions)
        )
    return tuple(
        forecast
        for partition in dict.fromkeys(ask.job.partitions)
        for forecast in (
            _of_pools(config, ask, moment, partition) if partition in own_partitions
            else _of_site(ask, moment, partition)
        )
    )  # fmt: skip


def _of_site(ask: PriceAsk, moment: Moment, partition: str) -> Iterator[PartitionPrice]:
    """The forecast for a partition of the site's own machines: no cost, no interruptions."""
    named = PartitionPrice(partition=partition, nodes=ask.job.node_count, low=0.0, high=0.0)
    nodes = [n for n in moment.nodes.values() if partition in n.partitions and _takes_jobs(n)]
    nodes = _chosen_from(ask.job, nodes)
    if len(nodes) < ask.job.node_count:
        yield replace(named, why=f"{len(nodes)} nodes of it are in service")
        return
    if ask.job.gres or ask.job.job_gres:
        # What slurmctld tells of a node has no gres: all GPUs may be busy beside free processors.
        yield replace(named, why="whether its GPUs (or other gres) are free is not known")
        return
    yield _started(named, ask, moment, present_of(ask, moment, partition, nodes), ())


def _of_pools(
    config: Config, ask: PriceAsk, moment: Moment, partition: str
) -> Iterator[PartitionPrice]:
    clouds = [cloud for cloud in config.clouds if cloud.partition_name == partition]
    for pool in domain_pools(config, expand):
        cloud = next((cloud for cloud in clouds if cloud.name == pool.cloud), None)
        if cloud is None or not could_run(ask.job, pool):
            continue
        if ask.job.required and set(ask.job.required).isdisjoint(pool.nodes):
            continue
        named = PartitionPrice(partition=partition, pool=pool.name, nodes=need(ask.job, pool))
        nodes = [moment.nodes[n] for n in pool.nodes if n in moment.nodes]
        cloud_limit = max_cloud_nodes(config, cloud)
        usable = sorted((n for n in nodes if _takes_jobs(n)), key=_is_off)
        usable = _chosen_from(ask.job, usable)[: max_pool_nodes(config, pool)][:cloud_limit]
        if len(usable) < named.nodes:
            yield replace(named, why=f"{len(usable)} nodes of it may be up together")
            continue
        machines = [m for m in moment.machines if m.pool == pool.name]
        present = present_of(ask, moment, partition, usable)
        boots = _boots(config, pool, machines)
        if _idle(usable, moment.jobs) >= named.nodes:
            boots = ()
        started = _started(named, ask, moment, present, boots)
        yield _paid(config, pool, started, ask, moment, machines)


def _chosen_from(job: SlurmJob, nodes: list[SlurmNode]) -> list[SlurmNode]:
    """The nodes from which Slurm chooses: all, unless the job names as many as it takes."""
    if len(job.required) < job.node_count:
        return nodes
    return [node for node in nodes if node.name in job.required]


def _takes_jobs(node: SlurmNode) -> bool:
    return not (is_down(node) or is_drained(node))


def _is_off(node: SlurmNode) -> bool:
    return phase(node) is not Phase.UP


def _idle(nodes: Iterable[SlurmNode], jobs: Iterable[SlurmJob]) -> int:
    """How many nodes are up and have no job."""
    busy = {node for job in jobs if not job.has_ended for node in job.nodes}
    return sum(node.name not in busy and not _is_off(node) for node in nodes)


# The start is computed in processors, because jobs may share a node. We ignore how free processors
# are spread over the nodes, and which jobs QOS or fair share will let overtake others.


def present_of(
    ask: PriceAsk, moment: Moment, partition: str, nodes: Sequence[SlurmNode]
) -> Present:
    """The processors of a partition's nodes, its running jobs, and its waiting jobs."""
    cpus = {node.name: max(node.cpus, 1) for node in nodes}
    running = []
    for job in moment.jobs:
        nodes_here = sum(node in cpus for node in job.nodes) if not job.has_ended else 0
        if nodes_here:
            size = max(_cpus_of(job) * nodes_here // len(job.nodes), 1)
            worked_s = _worked_s(job, moment.now)
            running.append(RunningJob(job=_asked(job, size, job.limit), elapsed=worked_s))
    waiting = [
        job
        for job in moment.jobs
        if "PENDING" in job.states and partition in job.partitions and is_counted(job, moment.now)
    ]
    if ask.job.id:
        # A job that waits already: only the jobs that Slurm puts before it count.
        place = _place(ask.job)
        waiting = [job for job in waiting if job.id != ask.job.id and _place(job) < place]
    waiting.sort(key=_place)
    # Of an array only the tasks that may run together count. Each end lets the next task start,
    # perhaps before the asked job, so a forecast beside such an array may be too early.
    queue = (
        _asked(job, job.cpus, _limit_in(ask, partition, job))
        for job in waiting
        for _ in range(min(job.tasks_at_a_time, MOST_TASKS))
    )
    return Present(
        machines=sum(cpus.values()),
        running=tuple(running),
        waiting=tuple(islice(queue, MOST_WAITING)),
    )


def _place(job: SlurmJob) -> tuple[int, float, int]:
    return -job.priority, job.submit, job.id


def _cpus_of(job: SlurmJob) -> int:
    allocated = _CPUS.search(job.allocated)
    return int(allocated[1]) if allocated else job.cpus


def _limit_in(ask: PriceAsk, partition: str, job: SlurmJob) -> int | None:
    """The time limit of a waiting job in a partition (s; None: it has none)."""
    return job.limit or ask.limits.get(partition) or None


def _asked(job: SlurmJob, size: int, limit: int | None) -> RequestedJob:
    return RequestedJob(
        size=max(size, 1), limit=limit or NO_LIMIT_S, user=job.user, account=job.account
    )


def _worked_s(job: SlurmJob, now: float) -> int:
    """The seconds of its time limit that a running job has used."""
    if not job.start:
        return 0
    ends_at = job.ends_at_latest
    # The time for which it was suspended is not used.
    began_at = job.start if job.limit is None or ends_at is None else ends_at - job.limit
    return max(int(now - began_at), 0)


def _started(
    named: PartitionPrice, ask: PriceAsk, moment: Moment, present: Present, boots: Sequence[int]
) -> PartitionPrice:
    """The forecast with start and run; with ``boots``, each start waits for one such boot."""
    limit = _limit_in(ask, named.partition, ask.job)
    wish = _asked(ask.job, ask.job.cpus, limit)
    times = start_forecast.starts(present, wish, moment.habits)
    if not times:
        return replace(named, why=f"it has {present.machines} processors in service")
    if boots:
        late = [boots[n * len(boots) // len(times)] for n in range(len(times))]
        times = tuple(sorted(t or boot for t, boot in zip(times, late, strict=True)))
    return replace(
        named,
        start=tuple(quantile(times, share) for share in _SHARES),
        by_limits=start_forecast.by_limits(present, wish),
        run=tuple(moment.habits.remaining(wish, 0, share) for share in _SHARES),
        jobs_known=moment.habits.jobs,
        limit=limit,
    )


def _boots(config: Config, pool: Pool, machines: Iterable[Machine]) -> tuple[int, ...]:
    """Seconds until each of the pool's machines registered, ascending. If there were none, the
    configured boot time.
    """
    took = [m.registered_at - m.instance.launched for m in machines if m.registered_at is not None]
    rules = rules_of(config, next(p for p in config.pools if p.name == pool.name))
    return tuple(sorted(int(max(seconds, 1)) for seconds in took)) or (rules.boot,)


# The cost is for whole machines: we do not count on other jobs that share them.


def _paid(
    config: Config,
    pool: Pool,
    started: PartitionPrice,
    ask: PriceAsk,
    moment: Moment,
    machines: Sequence[Machine],
) -> PartitionPrice:
    """The forecast with its cost, and for a pool that may have spot machines with the effect of
    interruptions.

    The field ``low`` is the cheapest known price for the usual run, ``high`` the dearest price for
    the whole limit and a boot. Both include the traffic of the job's data, and the time that it
    takes.
    """
    if not started.start:
        return started
    demand = on_demand_prices(config.cloud(pool.cloud), pool).values()
    spot = _last_spot(machines) if Market.SPOT in pool.markets else None
    lease = rules_of(config, next(p for p in config.pools if p.name == pool.name)).lease
    on_demand = any(market is not Market.SPOT for market in pool.markets) or spot is None
    prices = [*(demand if on_demand else []), *([] if spot is None else [spot])] or [0.0]
    usual, limit = started.run[1], started.limit or NO_LIMIT_S
    data, traffic = counted_data(ask.job.comment), traffic_terms(config.cloud(pool.cloud))
    moves, fee = traffic.seconds(data), traffic.dollars(data)
    boot = _boots(config, pool, machines)[-1]
    low = min(prices) * started.nodes
    high = max([*prices, *demand]) * started.nodes
    priced = replace(
        started,
        low=billed_dollars(low, paid_seconds(usual + moves, lease)) + fee,
        high=billed_dollars(high, paid_seconds(limit + boot + moves, lease)) + fee,
        market=str(Market.SPOT) if spot is not None and spot <= min(prices) else "",
        public=config.cloud(pool.cloud).location is Location.PUBLIC,
    )
    if Market.SPOT not in pool.markets:
        return priced
    return _interrupted(priced, ask, low, _mtti(machines, moment), usual)


def _interrupted(
    priced: PartitionPrice, ask: PriceAsk, rate: float, mtti: float, usual: int
) -> PartitionPrice:
    """The forecast with the effect of interruptions; ``rate``: $/h of all its machines."""
    plain = without_saves(usual, mtti, priced.nodes)
    saved = with_saves(usual, mtti, priced.nodes, ask.save)
    gained = None if plain is None or saved is None else max(plain - saved, 0.0)
    return replace(
        priced,
        chance=chance(usual, mtti, priced.nodes),
        saves_seconds=gained,
        saves_dollars=None if gained is None else billed_dollars(rate, gained),
    )


def _last_spot(machines: Iterable[Machine]) -> float | None:
    """The price of the spot machine that was bought last."""
    spot = [m.instance for m in machines if m.instance.market is Market.SPOT]
    return max(spot, key=lambda instance: instance.launched).price if spot else None


def _mtti(machines: Iterable[Machine], moment: Moment) -> float:
    """Mean seconds to an interruption of a spot machine of the pool, counted as ckptman does."""
    spot = [m for m in machines if m.instance.market is Market.SPOT]
    offers = {m.instance.offer_key for m in spot}
    seconds = sum(max((m.ended_at or moment.now) - m.instance.launched, 0.0) for m in spot)
    return observed_mtti(
        seconds, sum(moment.interruptions.get(offer, 0) for offer in offers), DEFAULT_MTTI
    )
