"""The records of a request for ``explain``: its first ranking, and what came of each launch.

They grow with the number of causes, not with offers times rounds: offers that were rejected or that
refused for one cause are kept together, and later rounds are kept as what was tried in them.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from msgspec import Struct

from slurm_elastic.base.hostlist import compress
from slurm_elastic.controller.context import Site
from slurm_elastic.model.causes import AnyCause
from slurm_elastic.model.causes.purchases import BestOffer
from slurm_elastic.model.cluster import LaunchSpec, NodeRequest, Placement
from slurm_elastic.policies.launch.grouping import braces, grouped, no_offer_serves
from slurm_elastic.state.audit_trail import job_subject

log = logging.getLogger(__name__)


BEST = 3
"""Offers of a ranking that are kept each with its reason; those behind them are named."""
CAUSES = 20
"""Groups of offers that are kept of one decision."""


class Refusals(Struct):
    """The launches of one request that a cloud refused, until they are told: all in one decision,
    as there may be one for each offer.
    """

    site: Site
    request: NodeRequest
    refused: list[tuple[LaunchSpec, AnyCause]] = []

    def add(self, spec: LaunchSpec, why: AnyCause) -> None:
        """One more."""
        log.info(
            "offer refused request=%s offer=%s reason=%s", self.request.id, spec.offer.key, why
        )
        self.refused.append((spec, why))

    def tell(self) -> None:
        """Keep what was refused since the last time; each launch by itself is forgotten."""
        if not self.refused:
            return
        groups = grouped((spec.offer, why) for spec, why in self.refused)
        alone = len(self.refused) == 1
        detail: dict[str, object] = {"refused": [group.row for group in groups[:CAUSES]]}
        nodes = tuple(dict.fromkeys(n for spec, _ in self.refused for n in spec.nodes))
        why = groups[0].cause if alone else no_offer_serves(groups)
        note(self.site, self.request, nodes, "launch-refused", why, None if alone else detail)
        self.site.ledger.launches.forget([spec.generation for spec, _ in self.refused])
        self.refused = []


def record_ranking(site: Site, placement: Placement, *, enough: bool) -> None:
    """Keep a request's ranking: the best offers, and the others by what was in the way."""
    request = placement.request
    best = placement.ranked[0].offer.key if placement.ranked and enough else ""
    detail: dict[str, object] = {
        "ranked": [[r.offer.key, r.room, r.reason] for r in placement.ranked[:BEST]],
        "rejected": [
            group.row for group in grouped((r.offer, r.cause) for r in placement.rejected)[:CAUSES]
        ],
        "jobs": {str(j): compress(share) for j, share in request.job_nodes.items()},
    }
    if placement.ranked[BEST:]:
        detail["behind"] = braces(r.offer.key for r in placement.ranked[BEST:])
    site.record(
        request.id,
        "ranked",
        (*request.nodes, *(job_subject(j) for j in request.jobs)),
        BestOffer(nodes=len(request.nodes), pool=request.pool.name, offer=best),
        detail,
    )


def note(
    site: Site,
    request: NodeRequest,
    nodes: Sequence[str],
    kind: str,
    why: AnyCause,
    detail: dict[str, object] | None = None,
) -> None:
    """Log and keep a decision about some nodes of a request and the jobs that wait for them."""
    log.info("%s request=%s nodes=%s reason=%s", kind, request.id, compress(nodes), why)
    some = set(nodes)
    jobs = [j for j, share in request.job_nodes.items() if not some.isdisjoint(share)]
    site.record(request.id, kind, (*nodes, *(job_subject(j) for j in jobs)), why, detail)
