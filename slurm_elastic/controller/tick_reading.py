"""Slurm's nodes, read once for the rounds of all clouds that a tick begins."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import ClassVar

from slurm_elastic.base.errors import SlurmError
from slurm_elastic.base.guards import Guarded, GuardedBy
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

    guarded_by: ClassVar[GuardedBy] = {"_lock": Guarded("_began", "_found")}

    def __init__(self, site: Site) -> None:
        self._site = site
        self._lock = threading.Lock()
        self._began = float("-inf")
        self._found: Mapping[str, SlurmNode] | SlurmError = {}

    def nodes(self, since: float = float("-inf")) -> Mapping[str, SlurmNode]:
        """Every node by Slurm, by a reading that began after ``since`` (monotonic s), when a cloud
        last served a request: an older one does not know why a machine is there. SlurmError where
        there is no answer.
        """
        with self._lock:
            clock = self._site.monotonic()
            if clock - self._began > FRESH or self._began <= since:
                self._began = clock
                try:
                    self._found = all_nodes(self._site)
                except SlurmError as error:
                    # The failure is kept, too: each round would wait for the same slurmctld.
                    self._found = error
            found = self._found
        if isinstance(found, SlurmError):
            raise found
        return found
