"""Finds the nodes of a request that may still get a machine: Slurm must wait for them, and the rest
of ResumeTimeout must be long enough for a boot.

One request may take minutes, because a cloud may refuse many offers slowly. Until a cloud has
answered, slurmctld may give nodes up at ResumeTimeout.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from slurm_elastic.base.errors import SlurmError
from slurm_elastic.model.causes.limits import RequestTooLate
from slurm_elastic.policies.launch.boots import may_wait
from slurm_elastic.policies.launch.gang import Gang
from slurm_elastic.policies.nodes.node_state import Phase, is_down, phase

if TYPE_CHECKING:
    from slurm_elastic.controller.context import Site

log = logging.getLogger(__name__)

READING_TTL_S = 5.0
"""Seconds for which a reading of Slurm's nodes counts. All launches and starts of a request share
it, because a reading takes most of a second at a large site.
"""


class AwaitedNodes:
    """The nodes of one request. The caller has just read in Slurm that they power up.

    ``asked_at``: when Slurm asked for them (Unix time); None if unknown. ``gone``: the nodes that
    Slurm no longer waits for. ``up``: the nodes that are in service without a machine of this
    request. Both are as of the last ``look``.
    """

    def __init__(
        self, site: Site, cloud: str, nodes: Sequence[str], asked_at: float | None
    ) -> None:
        self._site, self._nodes = site, tuple(nodes)
        self._timeout_s = site.config.resume_timeout(site.clouds[cloud])
        self._read_at = site.monotonic()
        # Convert from Unix time only once, because the clock may be set.
        self._began = self._read_at - self._age_s(asked_at)
        self._is_newest_known = False
        self.gone: frozenset[str] = frozenset()
        self.up: frozenset[str] = frozenset()

    def look(self) -> None:
        """Read Slurm's nodes again if the last reading is old."""
        site = self._site
        if site.monotonic() - self._read_at < READING_TTL_S:
            return
        try:
            view = site.slurm.nodes(self._nodes)
        except SlurmError as error:
            # slurmctld may be restarting. Its last answer counts until it answers again or until
            # the request is too late.
            log.warning("nodes cannot be read, their last state counts: %s", error)
            return
        finally:
            self._read_at = site.monotonic()
        booting = {n for n, node in view.items() if phase(node) is Phase.POWERING_UP}
        self.up = frozenset(
            n for n, node in view.items() if phase(node) is Phase.UP and not is_down(node)
        )
        self.gone = frozenset(self._nodes) - booting - self.up

    def whole(self, gangs: Sequence[Gang]) -> Sequence[Gang]:
        """Return the gangs of which Slurm still waits for every node. A job that lacks a
        node cannot start, so machines for its other nodes would be useless.
        """
        return [gang for gang in gangs if self.gone.isdisjoint(gang.nodes)]

    def find_lateness(self) -> RequestTooLate | None:
        """Return why no machine may start for these nodes any longer; None if machines may."""
        site = self._site
        if not may_wait(self._began, site.monotonic(), self._timeout_s):
            self._learn_newest_request()
        waited_s = site.monotonic() - self._began
        if may_wait(self._began, site.monotonic(), self._timeout_s):
            return None
        return RequestTooLate(waited_s=waited_s, timeout_s=self._timeout_s)

    def _learn_newest_request(self) -> None:
        """Count the time from the newest request for any of the nodes. The request served now may
        be of an earlier power-up, for example if the daemon was down in between.
        """
        if self._is_newest_known:
            return
        self._is_newest_known = True
        names = set(self._nodes)
        times = [
            request.received
            for request in self._site.spool.pending()
            if request.kind == "resume" and not names.isdisjoint(request.nodes)
        ]
        if times:
            newest = self._site.monotonic() - self._age_s(max(times))
            self._began = max(self._began, newest)

    def _age_s(self, asked_at: float | None) -> float:
        """Return how long ago Slurm asked (s); 0 if ``asked_at`` is unknown."""
        age_s = 0.0 if asked_at is None else self._site.now() - asked_at
        # After ResumeTimeout Slurm has given the nodes up. If they power up now, Slurm has asked
        # for them once more, or the clock was set.
        return age_s if 0 <= age_s < self._timeout_s else 0.0
