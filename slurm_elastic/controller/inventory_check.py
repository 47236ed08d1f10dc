"""A list that was wrong for long stays told of until it shows some of what it lacked, or a person
clears it.

That a doubt goes away proves nothing: one gap in slurmctld's pings, and rows end by a list that is
still wrong; what runs then is paid and in no row. So it is kept, among the decisions.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import msgspec
from msgspec import Struct

from slurm_elastic.audit_trail import DOUBTED, list_doubt, list_subject
from slurm_elastic.controller.context import Site, generation_time
from slurm_elastic.ledger import Decision
from slurm_elastic.model import Instance
from slurm_elastic.policies.inventory_check import InventoryReport

log = logging.getLogger(__name__)

CORRELATION = "reconcile"
SAMPLE = 100
"""Machines, and nodes, that are remembered of what a list lacks."""


class _Lacked(Struct, frozen=True, kw_only=True):
    """Some of what the list lacked: machines by id, and nodes whose machine is not known."""

    machines: tuple[str, ...]
    nodes: tuple[str, ...]


def keep_doubt(site: Site, cloud: str, listing: InventoryReport) -> None:
    """The doubt about this list has stood for long: it lasts from now on."""
    if list_doubt(site.ledger, cloud) is not None:
        return
    detail: dict[str, object] = {
        "machines": sorted(listing.lacked)[:SAMPLE],
        "nodes": sorted(listing.unserved)[:SAMPLE],
    }
    site.record(CORRELATION, DOUBTED, (list_subject(cloud),), listing.doubt, detail)


def lasting_doubt(site: Site, cloud: str, seen: Sequence[Instance]) -> str | None:
    """The doubt that still stands though nothing speaks against this list any more."""
    doubt = list_doubt(site.ledger, cloud)
    if doubt is None:
        return None
    back = _shown_again(doubt, seen)
    if back is None:
        return f"{doubt.reason} It has shown none of them since; `clear {cloud}` if they are gone"
    log.info("list is right again cloud=%s id=%s", cloud, back)
    why = f"the list has {back} again"
    site.record(CORRELATION, "list-right-again", (list_subject(cloud),), why)
    return None


def _shown_again(doubt: Decision, seen: Sequence[Instance]) -> str | None:
    lacked = msgspec.convert(doubt.detail, _Lacked)
    machines, nodes = frozenset(lacked.machines), frozenset(lacked.nodes)
    for one in seen:
        was_there = generation_time(one.generation) < doubt.at
        if one.id in machines or (one.node in nodes and was_there):
            return one.id
    return None
