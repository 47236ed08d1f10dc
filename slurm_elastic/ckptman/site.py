"""The things that ckptman works on: configuration, Slurm, both memories, clouds and checkpoint
methods.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from slurm_elastic.base.errors import SlurmError
from slurm_elastic.base.hostlist import expand
from slurm_elastic.base.ttl_cache import TtlCache
from slurm_elastic.ckptman.recorder import DecisionRecorder
from slurm_elastic.config import Config, PoolSettings, max_age
from slurm_elastic.config.pool_rules import rules_of
from slurm_elastic.model.protocols import Checkpointer, Provider, Slurm
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.state.ckptstate import CheckpointState
from slurm_elastic.state.ledger import Ledger

MAX_OUTPUT_TRIES = 5
"""Times, a second apart, that a job is tried to be told something."""
JOBS_TTL_S = 0.3
"""Seconds for which one reading serves everybody."""


class JobList:
    """The list of jobs, read once for all threads that ask within ``fresh`` seconds by ``clock``,
    which is monotonic.
    """

    def __init__(
        self, slurm: Slurm, clock: Callable[[], float] = time.monotonic, fresh: float = JOBS_TTL_S
    ) -> None:
        self._slurm = slurm
        self.clock = clock
        self.fresh = fresh
        # Asks for ``clock`` each time, because tests set it later.
        self._cache = TtlCache[str, Mapping[int, SlurmJob]](lambda: self.clock())

    def read(self, *, refresh: bool = False) -> Mapping[int, SlurmJob]:
        """All jobs, by a list of this moment (``refresh``: one that was asked for after this call
        began). SlurmError where it cannot be read.
        """
        # As of the call: threads that waited for a slow list take that one, and no other each.
        return self._cache.get(
            "jobs", self._read, since=self.clock() - (0.0 if refresh else self.fresh)
        )

    def _read(self) -> Mapping[int, SlurmJob]:
        return {job.id: job for job in self._slurm.jobs(ended=True)}

    @property
    def last(self) -> Mapping[int, SlurmJob]:
        """The jobs of the last list, however long ago."""
        return self._cache.last("jobs") or {}

    @property
    def cost(self) -> float:
        """How long Slurm took for the last list (s)."""
        reading = self._cache.reading("jobs")
        return 0.0 if reading is None else reading.took_s

    def read_new(self, job: int) -> SlurmJob | None:
        """The job by a list that was asked for after this call began."""
        return self.read(refresh=True).get(job)

    def find(self, job: int) -> SlurmJob | None:
        """The job by a list of this moment."""
        return self.read().get(job)

    def mark(self) -> float:
        """The moment, for ``is_read_after``."""
        return self.clock()

    def is_read_after(self, mark: float) -> bool:
        """Whether the last list was asked for after that moment."""
        reading = self._cache.reading("jobs")
        return reading is not None and reading.began_at >= mark


@dataclass(frozen=True)
class CheckpointSite:
    """One cluster as ckptman knows it. ``now`` is Unix time, ``monotonic`` the clock for pauses."""

    config: Config
    slurm: Slurm
    ledger: Ledger
    state: CheckpointState
    recorder: DecisionRecorder
    jobs: JobList
    checkpointers: Mapping[str, Checkpointer]
    providers: Mapping[str, Provider]
    pool_of: Mapping[str, PoolSettings]
    now: Callable[[], float]
    monotonic: Callable[[], float] = time.monotonic
    stop: threading.Event = field(default_factory=threading.Event)

    @functools.cached_property
    def leases(self) -> Mapping[str, float]:
        """Seconds that a machine of each of our nodes is paid at a time."""
        pools = {pool.name: rules_of(self.config, pool).lease for pool in self.config.pools}
        return {node: pools[pool.name] for node, pool in self.pool_of.items()}

    @functools.cached_property
    def max_ages(self) -> Mapping[str, float | None]:
        """Seconds that a machine of each pool may live; None: for ever."""
        return {pool.name: max_age(self.config, pool) for pool in self.config.pools}


def write_to_job_output(site: CheckpointSite, job: int, *lines: str) -> None:
    """Lines in the job's own output. One that has only just begun has no step yet to write them:
    it is tried again for some seconds. Raises SlurmError where it cannot be told.
    """
    for line in lines:
        for left in reversed(range(MAX_OUTPUT_TRIES)):
            try:
                site.slurm.tell(job, line)
                break
            except SlurmError:
                if not left:
                    raise
            site.stop.wait(1.0)


def pools_by_node(config: Config) -> Mapping[str, PoolSettings]:
    """Each of our nodes with its pool's settings."""
    return {node: pool for pool in config.pools for node in expand(pool.nodes)}
