"""Everything outside a job that decides why it waits: pools, and the obstacles of the ledger."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from msgspec import Struct, field
from msgspec.structs import replace

from slurm_elastic.model.directive import LimitChange
from slurm_elastic.model.job_holds import JobHold
from slurm_elastic.model.memory import UnhelpedJob
from slurm_elastic.policies.launch.verdict import PoolBar, PoolCase
from slurm_elastic.policies.money.account_budgets import Overdrawn

NODES, MONEY = "nodes", frozenset({"usage", "accounts"})
"""The words of PrivateData that hide machines and money of other users."""


class Obstacles(Struct, frozen=True, kw_only=True):
    """The reasons in the records why jobs get no machine.

    ``bars``: the pools that cannot start all of their nodes. ``held``: by pool, why
    slurm-elasticd keeps nodes of it from Slurm. ``payers``: by scope, the accounts and
    users that get no machine of a public cloud. ``retry_at``: by pool, when its sold-out cloud is
    asked again (Unix time). ``unhelped``: jobs that growth policies do not count. ``job_holds``: by
    job, why slurm-elasticd held it last. ``limits``: limits that operators' orders change now.
    ``end_only``: why slurm-elasticd starts no machines at all.
    """

    bars: tuple[PoolBar, ...] = ()
    held: Mapping[str, str] = field(default_factory=dict)
    payers: Mapping[str, Overdrawn] = field(default_factory=dict)
    retry_at: Mapping[str, float] = field(default_factory=dict)
    unhelped: tuple[UnhelpedJob, ...] = ()
    job_holds: Mapping[int, JobHold] = field(default_factory=dict)
    limits: tuple[LimitChange, ...] = ()
    end_only: str = ""

    def without(self, hidden: Collection[str]) -> Obstacles:
        """Return the part that users may see. ``hidden``: words of Slurm's PrivateData."""
        shown = self
        if not MONEY.isdisjoint(hidden):
            shown = replace(shown, payers={}, limits=())
        if NODES in hidden:
            unhelped = tuple(replace(row, nodes=()) for row in shown.unhelped)
            shown = replace(shown, unhelped=unhelped, held={})
        if NODES in hidden or not MONEY.isdisjoint(hidden):
            shown = replace(shown, bars=tuple(bar.public for bar in shown.bars))
        return shown


class Situation(Struct, frozen=True, kw_only=True):
    """The site at ``now`` (Unix time), as far as it decides why jobs wait.

    ``cases``: all pools. ``fixed_arrays``: the arrays of which a task has started. ``default``: the
    site's default partition. ``max_times``: MaxTime (s) by partition, also of the site's partitions
    (None: no limit). ``groups``: the Unix groups of the one user whose job is asked about
    (None: unknown). ``default`` and ``groups`` matter only for partitions that a job does not list.
    """

    now: float
    cases: tuple[PoolCase, ...] = ()
    obstacles: Obstacles = Obstacles()
    fixed_arrays: frozenset[int] = frozenset()
    default: str = ""
    max_times: Mapping[str, float | None] = {}
    groups: frozenset[str] | None = None
