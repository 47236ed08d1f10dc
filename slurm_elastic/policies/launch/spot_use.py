"""The jobs that may use spot machines. Pure.

A cloud may take a spot machine back at any time. A job that Slurm may requeue then starts again. A
job with ``--no-requeue`` would be lost, so it stays off spot machines, unless its user
(``--comment=spot=ok``) or the site (``allow.no_requeue_on_spot``) says that the tool behind it
submits it again. The submit filter has the same rules (``bears_loss`` in ``slurm_elastic.lua``).

Slurm ignores the weights of powered-down nodes (measured on 22.05; node_scheduler.c,
_build_node_list). A second pool of on-demand machines in the partition of a spot pool would
therefore also get jobs that should use spot. Slurm takes the nodes of one pool in their order, so
the last nodes of the pool itself are the nodes without spot machines (``on_demand_nodes``).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from slurm_elastic.model.causes.refusals import NodeOnDemand, NoSpot
from slurm_elastic.model.cluster import Pool
from slurm_elastic.model.slurm import SlurmJob

SPOT_OK = "spot=ok"
"""The word of a job's comment."""
ALL_ACCOUNTS = "all"
"""The word of ``allow.no_requeue_on_spot`` for every account. No account has this name, because
``AllowAccounts=ALL`` means every account (slurm.conf(5)).
"""
_WORD = re.compile(rf"(?:^|[\s;]){SPOT_OK}(?:$|[\s;])")


def says_spot_ok(comment: str) -> bool:
    """Whether the job's comment says that it may lose a spot machine."""
    return _WORD.search(comment) is not None


def bears_loss(job: SlurmJob, accounts: Collection[str]) -> bool:
    """Whether the job may lose its machine. ``accounts``: ``allow.no_requeue_on_spot``."""
    if job.requeue or says_spot_ok(job.comment):
        return True
    allowed = {name.lower() for name in accounts}
    return ALL_ACCOUNTS in allowed or job.account.lower() in allowed


def nodes_for(job: SlurmJob, pool: Pool, accounts: Collection[str]) -> int:
    """How many nodes of the pool the job may use."""
    return len(pool.nodes) if bears_loss(job, accounts) else pool.steady_nodes


def may_buy_other(pool: Pool) -> bool:
    """Whether the pool may have both spot machines and other machines."""
    return bool(pool.spot_nodes) and len(pool.markets) > 1


def never_on_spot(pool: Pool, node: str) -> NodeOnDemand | None:
    """Return why the node never has a spot machine although its pool buys some."""
    if not pool.on_demand_nodes or node in pool.spot_nodes:
        return None
    return NodeOnDemand(pool=pool.name)


def find_affected(pool: Pool, no_spot: NoSpot | None) -> Sequence[str]:
    """Return the nodes of the pool that get no machine either if one of its nodes gets none.
    ``no_spot``: why no spot machine was bought for that node; None if spot was refused, too.
    """
    # Spot may have room for the nodes that may have spot machines.
    return pool.nodes if no_spot is None else pool.nodes[len(pool.spot_nodes) :]
