"""Remembers that a cloud's list was wrong for a long time. We report the doubt until the list shows
one of the missing machines again or a person clears it.

The doubt is kept as an exclusion, because a round without the doubt proves nothing. The list may
still be wrong after a gap in slurmctld's pings: rows would end, and their machines would run, cost
money and have no row.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from math import inf

from slurm_elastic.controller.context import Site
from slurm_elastic.controller.snapshot import CORRELATION
from slurm_elastic.model.causes.repairs import ListDoubted, ListShowsAgain
from slurm_elastic.model.cluster import Instance, InstanceState
from slurm_elastic.model.exclusion import DOUBT, Exclusion
from slurm_elastic.model.memory import generation_time
from slurm_elastic.policies.repair.cluster_snapshot import ClusterSnapshot
from slurm_elastic.policies.repair.inventory import InventoryReport
from slurm_elastic.state.audit_trail import list_subject

log = logging.getLogger(__name__)


MAX_SAMPLE = 100
"""The maximum of missing machines, and of nodes, remembered of a doubted list."""
NODE_PREFIX = "node:"
"""Prefix of a node's name among the remembered subjects."""


def keep_doubt(site: Site, snapshot: ClusterSnapshot, listing: InventoryReport) -> None:
    """Keep the doubt about this list, which has stood for long, until it is proved or cleared."""
    cloud = snapshot.terms.cloud
    if _find_doubt(snapshot) is not None:
        return
    lacked, nodes = sorted(listing.lacked)[:MAX_SAMPLE], sorted(listing.unserved)[:MAX_SAMPLE]
    about = (*lacked, *(f"{NODE_PREFIX}{name}" for name in nodes))
    cause = ListDoubted(doubt=listing.doubt)
    site.ledger.exclusions.add(
        Exclusion(kind=DOUBT, scope=cloud, until=inf, cause=cause, since=site.now(), about=about)
    )
    detail: dict[str, object] = {"machines": lacked, "nodes": nodes}
    site.record(
        CORRELATION,
        "list-doubted",
        (list_subject(cloud),),
        ListDoubted(doubt=listing.doubt),
        detail,
    )


def _find_doubt(snapshot: ClusterSnapshot) -> Exclusion | None:
    """Return the kept doubt about the cloud's list; None if there is none."""
    rows, cloud = snapshot.exclusions, snapshot.terms.cloud
    return next((row for row in rows if (row.kind, row.scope) == (DOUBT, cloud)), None)


def review_lasting_doubt(site: Site, snapshot: ClusterSnapshot) -> str | None:
    """Return the kept doubt as a sentence. If the present list shows one of the missing machines
    again, end the doubt and return None.
    """
    doubt, cloud = _find_doubt(snapshot), snapshot.terms.cloud
    if doubt is None:
        return None
    shown_id = _find_shown_again(doubt, snapshot.listed or ())
    if shown_id is None:
        return f"{doubt.cause} It has shown none of them since; `clear {cloud}` if they are gone"
    log.info("the cloud's list is believed again cloud=%s id=%s", cloud, shown_id)
    site.ledger.exclusions.readmit(DOUBT, cloud)
    cause = ListShowsAgain(machine=shown_id)
    site.record(CORRELATION, "list-right-again", (list_subject(cloud),), cause)
    return None


def _find_shown_again(doubt: Exclusion, listed: Sequence[Instance]) -> str | None:
    lacked = frozenset(doubt.about)
    for instance in listed:
        # A doubted list may show machines as ended whose nodes answer.
        if instance.state is InstanceState.TERMINATED:
            continue
        # A machine that was launched after the doubt began proves nothing: the list may still lack
        # the older ones.
        was_there = generation_time(instance.generation) < doubt.since
        if instance.id in lacked or (f"{NODE_PREFIX}{instance.node}" in lacked and was_there):
            return instance.id
    return None
