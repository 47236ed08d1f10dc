"""The records of a request for ``explain``: its first ranking and the result of each launch.

Offers that were rejected, or that refused, for the same cause share one record, and of later
rankings only the launches are recorded. The records therefore grow with the number of causes, not
with the number of offers and rounds.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from msgspec import Struct

from slurm_elastic.base.hostlist import compress
from slurm_elastic.controller.context import Site
from slurm_elastic.model.causes import AnyCause
from slurm_elastic.model.causes.purchases import BestOffer
from slurm_elastic.model.cluster import LaunchSpec, NodeRequest
from slurm_elastic.model.placement import Placement
from slurm_elastic.policies.launch.grouping import braces, grouped, no_offer_serves
from slurm_elastic.state.audit_trail import job_subject

log = logging.getLogger(__name__)


BEST_RECORDED = 3
"""The best offers of a ranking to record with their reason; the others only by name."""
MAX_CAUSES = 20
"""Groups of offers that one record has at most."""


class Refusals(Struct):
    """Collects the refused launches of one request, to record them in one decision: there may be
    one for each offer. ``of_partial``: earlier refusals by offer that gave too few machines.
    """

    site: Site
    request: NodeRequest
    refused: list[tuple[LaunchSpec, AnyCause]] = []
    of_partial: dict[str, int] = {}

    def add(self, spec: LaunchSpec, cause: AnyCause) -> None:
        """Add a refused launch."""
        log.info(
            "offer refused request=%s offer=%s reason=%s", self.request.id, spec.offer.key, cause
        )
        self.refused.append((spec, cause))

    def record_collected(self) -> None:
        """Record the launches refused since the last call in one decision."""
        if not self.refused:
            return
        groups = grouped((spec.offer, cause) for spec, cause in self.refused)
        is_single = len(self.refused) == 1
        detail: dict[str, object] = {"refused": [group.row for group in groups[:MAX_CAUSES]]}
        nodes = tuple(dict.fromkeys(n for spec, _ in self.refused for n in spec.nodes))
        cause = groups[0].cause if is_single else no_offer_serves(groups)
        record_launch_decision(
            self.site, self.request, nodes, "launch-refused", cause, None if is_single else detail
        )
        self.refused = []


def record_ranking(site: Site, placement: Placement, *, enough: bool) -> None:
    """Record a request's ranking: the best offers, and the rejected ones grouped by cause."""
    request = placement.request
    best = placement.ranked[0].offer.key if placement.ranked and enough else ""
    detail: dict[str, object] = {
        "ranked": [[r.offer.key, r.room, r.reason] for r in placement.ranked[:BEST_RECORDED]],
        "rejected": [
            group.row
            for group in grouped((r.offer, r.cause) for r in placement.rejected)[:MAX_CAUSES]
        ],
        "jobs": {str(j): compress(share) for j, share in request.job_nodes.items()},
    }
    if placement.ranked[BEST_RECORDED:]:
        detail["behind"] = braces(r.offer.key for r in placement.ranked[BEST_RECORDED:])
    site.record(
        request.id,
        "ranked",
        (*request.nodes, *(job_subject(j) for j in request.jobs)),
        BestOffer(nodes=len(request.nodes), pool=request.pool.name, offer=best),
        detail,
    )


def record_launch_decision(
    site: Site,
    request: NodeRequest,
    nodes: Sequence[str],
    kind: str,
    cause: AnyCause,
    detail: dict[str, object] | None = None,
) -> None:
    """Log and record a decision about some nodes of a request and the jobs that wait for them."""
    log.info("%s request=%s nodes=%s reason=%s", kind, request.id, compress(nodes), cause)
    decided_nodes = set(nodes)
    jobs = [j for j, share in request.job_nodes.items() if not decided_nodes.isdisjoint(share)]
    site.record(request.id, kind, (*nodes, *(job_subject(j) for j in jobs)), cause, detail)
