"""Slurm's nodes, read once for the rounds of all clouds that a tick begins."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf, nextafter

from slurm_elastic.base.errors import SlurmError
from slurm_elastic.base.ttl_cache import TtlCache
from slurm_elastic.controller.context import Site
from slurm_elastic.controller.snapshot import read_all_nodes
from slurm_elastic.model.slurm import SlurmNode

READING_TTL_S = 5.0
"""Seconds for which the rounds of one tick share a reading. A cloud takes about as long to answer,
so a round compares its list with nodes of this age anyway. A round that starts later reads again.
"""


class TickReading:
    """Slurm's nodes, or the error of reading them, for all rounds of one tick. The first round
    reads, the others share the result. Thread-safe.
    """

    def __init__(self, site: Site) -> None:
        self._site = site
        self._cache = TtlCache[str, Mapping[str, SlurmNode] | SlurmError](site.monotonic)

    def nodes(self, since: float = -inf) -> Mapping[str, SlurmNode]:
        """Return all nodes of Slurm, from a reading that began after ``since`` (monotonic s), the
        time when the cloud last served a request. An older reading does not show why the machines
        of that request exist. SlurmError: Slurm did not answer.
        """
        # Strictly after: a reading that began at ``since`` may not show the request's nodes either.
        nodes = self._cache.get(
            "nodes", self._read, ttl_s=READING_TTL_S, since=nextafter(since, inf)
        )
        if isinstance(nodes, SlurmError):
            raise nodes
        return nodes

    def _read(self) -> Mapping[str, SlurmNode] | SlurmError:
        try:
            return read_all_nodes(self._site)
        except SlurmError as error:
            # Share the failure, too: otherwise each round would wait for the same slurmctld's
            # time-out.
            return error
