"""Chooses the repairs that may be carried out now: a finding must stand for a while, and deletions
are capped. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from msgspec import Struct

from slurm_elastic.policies.actions import (
    Action,
    TerminateDouble,
    TerminateOrphan,
    TerminateStopped,
    TerminateUnlisted,
)
from slurm_elastic.policies.repair.cloud_view import CloudView, Thresholds
from slurm_elastic.policies.repair.inventory import cap
from slurm_elastic.policies.repair.reconcile_rules import repairs

_ENDS = (TerminateOrphan, TerminateUnlisted, TerminateDouble, TerminateStopped)
"""The capped repairs that a feature may put off, for example until a job's files are copied."""


def _none_unfinished(_: Sequence[str]) -> Collection[str]:
    return ()


class DueRepairs(Struct, frozen=True, kw_only=True):
    """``ready``: repairs to carry out now. ``deferred_count``: how many more the cap leaves for the
    next round. ``found_since``: since when each patient finding has stood (monotonic s), by kind
    and subject.
    """

    ready: tuple[Action, ...]
    deferred_count: int
    found_since: Mapping[tuple[str, str], float]


def due_repairs(
    view: CloudView,
    patience: Thresholds,
    before: Mapping[tuple[str, str], float],
    clock: float,
    find_unfinished: Callable[[Sequence[str]], Collection[str]] = _none_unfinished,
) -> DueRepairs:
    """Return the repairs that stand for long enough, up to the cap. ``before``: ``found_since``
    of the round before; ``clock``: monotonic s; ``find_unfinished``: returns the machines among
    these that must not end yet.
    """

    def grace_of(action: Action) -> float:
        unlisted = isinstance(action, TerminateUnlisted)
        # The grace itself may be longer: it is without end right after a takeover.
        return max(patience.grace_s, patience.unlisted_node_s) if unlisted else patience.grace_s

    ready, standing = debounce(repairs(view, patience), before, clock, grace_of)
    # Before the cap: machines that stay in any case would keep the other repairs waiting.
    unfinished = find_unfinished([action.machine for action in ready if isinstance(action, _ENDS)])
    ready = tuple(a for a in ready if not isinstance(a, _ENDS) or a.machine not in unfinished)
    # Machines that already end must not raise the cap.
    serving = sum(not machine.is_ending for machine in view.tracked)
    ready, waiting = limit_disruption(ready, serving)
    return DueRepairs(ready=ready, deferred_count=waiting, found_since=standing)


def debounce(
    actions: Iterable[Action],
    first_seen: Mapping[tuple[str, str], float],
    now: float,
    grace_of: Callable[[Action], float],
) -> tuple[tuple[Action, ...], dict[tuple[str, str], float]]:
    """Return the actions that may be carried out now, and since when each patient finding has
    stood. ``grace_of``: how long (s) it must stand.
    """
    ready: list[Action] = []
    # Rebuilt each round, so that a finding that was absent for one round starts over.
    standing: dict[tuple[str, str], float] = {}
    for action in actions:
        if not action.patient:
            ready.append(action)
            continue
        since = first_seen.get((action.kind, action.subject), now)
        standing[action.kind, action.subject] = since
        if now - since >= grace_of(action):
            ready.append(action)
    return tuple(ready), standing


def limit_disruption(actions: Sequence[Action], live: int) -> tuple[tuple[Action, ...], int]:
    """Keep at most 20 % of ``live`` machines, or 10, of the capped actions. Return the kept
    actions, and how many wait.
    """
    limit = cap(live)
    kept: list[Action] = []
    deletions = 0
    for action in actions:
        if action.capped:
            deletions += 1
            # Dropped, not queued: the next round finds the same repair again if it is still due.
            if deletions > limit:
                continue
        kept.append(action)
    return tuple(kept), max(deletions - limit, 0)
