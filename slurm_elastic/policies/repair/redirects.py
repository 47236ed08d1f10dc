"""Decides which waiting jobs a migration sends to the other cloud. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from slurm_elastic.model.changed_jobs import ChangedJob, Redirected, Wish
from slurm_elastic.model.cluster import Pool
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.policies.launch.changed_jobs import is_waiting
from slurm_elastic.policies.launch.spot_use import bears_loss
from slurm_elastic.policies.launch.verdict import could_run


class Route(Struct, frozen=True, kw_only=True):
    """The way of jobs from the partition ``source`` to ``target``.

    ``leaving``: the pools of the source that lose machines; ``is_whole``: its whole cloud does, so
    that no job can start there. ``pools``: the target's pools. ``risk_accounts``: accounts whose
    jobs with ``--no-requeue`` may lose a machine there (``allow.no_requeue_on_spot``).
    """

    source: str
    target: str
    leaving: Sequence[Pool]
    pools: Sequence[Pool]
    is_whole: bool
    risk_accounts: Collection[str] = ()


def routes(
    nodes: Collection[str],
    to: str,
    pools: Sequence[Pool],
    partitions: Mapping[str, str],
    risk_accounts: Collection[str] = (),
) -> Iterator[Route]:
    """Yield the ways of jobs if the machines of ``nodes`` leave to the cloud ``to``, one for each
    cloud that loses machines. ``partitions``: by cloud. ``risk_accounts``: of the cloud ``to``.
    """
    for cloud, source in partitions.items():
        own_pools = [pool for pool in pools if pool.cloud == cloud]
        leaving = [pool for pool in own_pools if any(node in nodes for node in pool.nodes)]
        if cloud != to and leaving:
            yield Route(
                source=source,
                target=partitions[to],
                leaving=leaving,
                pools=[pool for pool in pools if pool.cloud == to],
                is_whole=all(node in nodes for pool in own_pools for node in pool.nodes),
                risk_accounts=risk_accounts,
            )


def is_redirectable(job: SlurmJob, route: Route) -> bool:
    """Whether the order may change the list of the waiting job: the target can run it and, as long
    as machines of the source stay, the job could have used the leaving ones.
    """
    # A partition that can never run the job would only hide why the job waits.
    if not is_waiting(job) or not any(could_run(job, pool) for pool in route.pools):
        return False
    if _may_be_lost(job, route):
        return False
    return route.is_whole or any(could_run(job, pool) for pool in route.leaving)


def _may_be_lost(job: SlurmJob, route: Route) -> bool:
    """Whether the order would let the job start on a spot machine although it bears no loss. The
    submit filter has excluded spot nodes only of the clouds that the job listed then.
    """
    if bears_loss(job, route.risk_accounts) or route.target in job.partitions:
        return False
    spot_nodes = {n for pool in route.pools if could_run(job, pool) for n in pool.spot_nodes}
    return not spot_nodes.issubset(job.excluded)


def with_redirects(
    job: SlurmJob,
    record: ChangedJob,
    routes_of: Mapping[int, Sequence[Route]],
    list_of: Callable[[Sequence[Wish]], tuple[str, ...]],
) -> ChangedJob:
    """Return the record with the wishes of the orders in force, and without those of ended orders.

    ``routes_of``: by number, the routes of each order in force. ``list_of``: the job's partitions
    according to wishes. An order that changes nothing for the job is no wish, so a job stays where
    it is if it may not or can never start in the target.
    """
    wishes = tuple(
        w for w in record.wishes if not isinstance(w, Redirected) or w.number in routes_of
    )
    names = list_of(wishes)
    for number, route in ((n, r) for n in sorted(routes_of) for r in routes_of[n]):
        redirect = Redirected(
            number=number, source=route.source, target=route.target, is_whole=route.is_whole
        )
        is_known = number in record.overruled or redirect in wishes
        if is_known or route.source not in names or not is_redirectable(job, route):
            continue
        if list_of((*wishes, redirect)) != names:
            wishes = (*wishes, redirect)
            names = list_of(wishes)
    overruled = tuple(number for number in record.overruled if number in routes_of)
    return replace(record, wishes=wishes, overruled=overruled)


def count_redirected(jobs: Iterable[SlurmJob], route: Route) -> int:
    """Return how many waiting jobs an order would send along the route."""
    count = 0
    for job in jobs:
        is_changed = route.source in job.partitions and (
            route.is_whole or route.target not in job.partitions
        )
        count += is_changed and is_redirectable(job, route)
    return count
