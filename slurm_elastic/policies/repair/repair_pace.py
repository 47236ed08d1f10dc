"""Which repairs may be done now: a finding has to stand for a while, deletions are capped. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from slurm_elastic.policies.actions import Action
from slurm_elastic.policies.repair.cloud_view import CloudView, Thresholds
from slurm_elastic.policies.repair.inventory import cap
from slurm_elastic.policies.repair.reconcile_rules import repairs


class DueRepairs(Struct, frozen=True, kw_only=True):
    """Repairs that may be done now, how many more the cap leaves for the next round, and since when
    each patient finding has stood (monotonic, by kind and subject).
    """

    ready: tuple[Action, ...]
    waiting: int
    standing: Mapping[tuple[str, str], float]


def due_repairs(
    view: CloudView, patience: Thresholds, before: Mapping[tuple[str, str], float], clock: float
) -> DueRepairs:
    """The repairs of a round that have stood for long enough, and not too many at once: ``before``
    is what the round before left standing, ``clock`` monotonic.
    """
    ready, standing = debounce(repairs(view, patience), before, clock, patience.grace)
    # Machines that already end must not raise the cap.
    serving = sum(not machine.suspending for machine in view.known)
    ready, waiting = limit_disruption(ready, serving)
    return DueRepairs(ready=ready, waiting=waiting, standing=standing)


def debounce(
    actions: Iterable[Action], first_seen: Mapping[tuple[str, str], float], now: float, grace: float
) -> tuple[tuple[Action, ...], dict[tuple[str, str], float]]:
    """The actions that may be taken now, and since when each patient one has stood."""
    ready: list[Action] = []
    # Made anew each round: a finding that is gone for one round starts from the beginning.
    standing: dict[tuple[str, str], float] = {}
    for action in actions:
        if not action.patient:
            ready.append(action)
            continue
        since = first_seen.get((action.kind, action.subject), now)
        standing[action.kind, action.subject] = since
        if now - since >= grace:
            ready.append(action)
    return tuple(ready), standing


def limit_disruption(actions: Sequence[Action], live: int) -> tuple[tuple[Action, ...], int]:
    """At most 20 % of ``live`` machines or 10 deleted; the rest waits. Returns how many wait."""
    most = cap(live)
    kept: list[Action] = []
    deletions = 0
    for action in actions:
        if action.capped:
            deletions += 1
            if deletions > most:
                continue
        kept.append(action)
    return tuple(kept), max(deletions - most, 0)
