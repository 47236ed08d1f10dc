"""A list that was wrong for long: told of until it shows some of what it lacked, or is cleared.

That a doubt goes away proves nothing: one gap in the pings of slurmctld, and rows end by a list
that is still wrong; what runs then is paid and in no row. So it is kept, as an exclusion.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from math import inf

from slurm_elastic.controller.context import Site
from slurm_elastic.controller.snapshot import CORRELATION
from slurm_elastic.model.causes.repairs import ListDoubted
from slurm_elastic.model.cluster import Instance
from slurm_elastic.model.exclusion import DOUBT, Exclusion
from slurm_elastic.model.memory import generation_time
from slurm_elastic.policies.repair.cluster_snapshot import ClusterSnapshot
from slurm_elastic.policies.repair.inventory import InventoryReport
from slurm_elastic.state.audit_trail import list_subject

log = logging.getLogger(__name__)


SAMPLE = 100
"""Machines, and nodes, that are remembered of what a list lacks."""
NODE = "node:"
"""Before the name of a node among them."""


def keep_doubt(site: Site, snapshot: ClusterSnapshot, listing: InventoryReport) -> None:
    """The doubt about this list has stood for long: it lasts from now on."""
    cloud = snapshot.terms.cloud
    if _doubt_of(snapshot) is not None:
        return
    lacked, nodes = sorted(listing.lacked)[:SAMPLE], sorted(listing.unserved)[:SAMPLE]
    about = (*lacked, *(f"{NODE}{name}" for name in nodes))
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


def _doubt_of(snapshot: ClusterSnapshot) -> Exclusion | None:
    """The doubt about a cloud's list that neither the list nor a person has ended."""
    rows, cloud = snapshot.exclusions, snapshot.terms.cloud
    return next((one for one in rows if (one.kind, one.scope) == (DOUBT, cloud)), None)


def lasting_doubt(site: Site, snapshot: ClusterSnapshot) -> str | None:
    """The doubt that still stands though nothing speaks against this list any more."""
    doubt, cloud = _doubt_of(snapshot), snapshot.terms.cloud
    if doubt is None:
        return None
    back = _shown_again(doubt, snapshot.listed or ())
    if back is None:
        return f"{doubt.cause} It has shown none of them since; `clear {cloud}` if they are gone"
    log.info("list is right again cloud=%s id=%s", cloud, back)
    site.ledger.exclusions.readmit(DOUBT, cloud)
    why = f"the list has {back} again"
    site.record(CORRELATION, "list-right-again", (list_subject(cloud),), why)
    return None


def _shown_again(doubt: Exclusion, seen: Sequence[Instance]) -> str | None:
    lacked = frozenset(doubt.about)
    for one in seen:
        # A machine that was launched since is no proof: the list may lack the older ones still.
        was_there = generation_time(one.generation) < doubt.since
        if one.id in lacked or (f"{NODE}{one.node}" in lacked and was_there):
            return one.id
    return None
