"""Slurm's nodes, read once for the rounds of all clouds that a tick begins."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf, nextafter

from slurm_elastic.base.errors import SlurmError
from slurm_elastic.base.ttl_cache import TtlCache
from slurm_elastic.controller.context import Site
from slurm_elastic.controller.snapshot import all_nodes
from slurm_elastic.model.slurm import SlurmNode

FRESH = 5.0
"""Seconds for which a reading is as good as a new one to a round that begins: clouds answer later
than that, and their machines are compared with it. A round that had to wait for longer reads anew.
"""


class TickReading:
    """The first round reads, the others of the tick have it, or its failure. Called by the threads
    of all clouds.
    """

    def __init__(self, site: Site) -> None:
        self._site = site
        self._cache = TtlCache[str, Mapping[str, SlurmNode] | SlurmError](site.monotonic)

    def nodes(self, since: float = -inf) -> Mapping[str, SlurmNode]:
        """Every node by Slurm, by a reading that began after ``since`` (monotonic s), when a cloud
        last served a request: an older one does not know why a machine is there. SlurmError where
        there is no answer.
        """
        # A reading that began at that very moment may not know of the machine, either.
        nodes = self._cache.get("nodes", self._read, ttl_s=FRESH, since=nextafter(since, inf))
        if isinstance(nodes, SlurmError):
            raise nodes
        return nodes

    def _read(self) -> Mapping[str, SlurmNode] | SlurmError:
        try:
            return all_nodes(self._site)
        except SlurmError as error:
            # The failure is kept, too: each round would wait for the same slurmctld.
            return error
