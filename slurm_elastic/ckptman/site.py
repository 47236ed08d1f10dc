"""Everything that ckptman works with: configuration, Slurm, ledger, own state, clouds and
checkpoint methods.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from slurm_elastic.base.errors import SlurmError
from slurm_elastic.base.hostlist import expand
from slurm_elastic.base.shared_dict import SharedDict
from slurm_elastic.base.ttl_cache import TtlCache
from slurm_elastic.ckptman.executor import KeyedExecutor
from slurm_elastic.ckptman.job_refusals import JobRefusals
from slurm_elastic.ckptman.recorder import BufferedRecorder
from slurm_elastic.config import Config, PoolSettings, domain_pools, max_age
from slurm_elastic.config.pool_rules import bid_of, rules_of
from slurm_elastic.config.sections.copying import Data
from slurm_elastic.model.cluster import Market, Pool
from slurm_elastic.model.journal_owner import Host
from slurm_elastic.model.memory import Machine
from slurm_elastic.model.protocols import Checkpointer, Provider, Slurm
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.state.ckptstate import CheckpointState
from slurm_elastic.state.ledger import Ledger

MAX_OUTPUT_TRIES = 5
"""How often we try to write a line to a job's output, a second apart."""
OUTPUT_WRITERS = 4
"""The number of threads that write lines to the outputs of jobs."""
JOBS_TTL_S = 0.3
"""Seconds for which one reading of the queue serves all threads."""


class JobList:
    """The list of jobs. Slurm is asked once for all threads that read within ``fresh`` seconds by
    ``clock``, which is monotonic.
    """

    def __init__(
        self, slurm: Slurm, clock: Callable[[], float] = time.monotonic, fresh: float = JOBS_TTL_S
    ) -> None:
        self._slurm = slurm
        self.clock = clock
        self.fresh = fresh
        # We look ``clock`` up at each call, because tests replace it later.
        self._cache = TtlCache[str, Mapping[int, SlurmJob]](lambda: self.clock())

    def read(self, *, refresh: bool = False) -> Mapping[int, SlurmJob]:
        """All jobs, from a list that is at most ``fresh`` seconds old; with ``refresh`` from a list
        that was requested after this call began. Raises SlurmError if Slurm does not answer.
        """
        # The age counts from this call. Threads that waited for a slow list share that list instead
        # of requesting one each.
        return self._cache.get(
            "jobs", self._read, since=self.clock() - (0.0 if refresh else self.fresh)
        )

    def _read(self) -> Mapping[int, SlurmJob]:
        return {job.id: job for job in self._slurm.jobs(ended=True)}

    @property
    def last(self) -> Mapping[int, SlurmJob]:
        """The jobs of the last list, however old it is."""
        return self._cache.last("jobs") or {}

    @property
    def cost(self) -> float:
        """Seconds that Slurm took for the last list."""
        reading = self._cache.reading("jobs")
        return 0.0 if reading is None else reading.took_s

    def read_new(self, job: int) -> SlurmJob | None:
        """The job, from a list that was requested after this call began. Raises SlurmError."""
        return self.read(refresh=True).get(job)

    def find(self, job: int) -> SlurmJob | None:
        """The job, from a list that is at most ``fresh`` seconds old. Raises SlurmError."""
        return self.read().get(job)

    def mark(self) -> float:
        """The current moment, for ``is_read_after``."""
        return self.clock()

    def is_read_after(self, mark: float) -> bool:
        """Whether the last list was requested after ``mark``."""
        reading = self._cache.reading("jobs")
        return reading is not None and reading.began_at >= mark


@dataclass(frozen=True)
class CheckpointSite:
    """One cluster as ckptman knows it. ``now`` gives Unix time (s); ``monotonic`` is the clock for
    pauses (s). ``refused_starts``, ``refused_exclusions``: the pending jobs whose start we cannot
    help, and whose excluded nodes we cannot change, because Slurm refuses. ``refused_suspensions``:
    the running jobs that Slurm refuses to suspend again. ``verified``: the running jobs whose
    ``--no-requeue`` is lifted while their first image is verified. ``host``: this host, None with
    two heads, where the epoch decides who acts.
    """

    config: Config
    slurm: Slurm
    ledger: Ledger
    state: CheckpointState
    recorder: BufferedRecorder
    jobs: JobList
    checkpointers: Mapping[str, Checkpointer]
    providers: Mapping[str, Provider]
    pool_of: Mapping[str, PoolSettings]
    now: Callable[[], float]
    monotonic: Callable[[], float] = time.monotonic
    stop: threading.Event = field(default_factory=threading.Event)
    refused_starts: JobRefusals = field(default_factory=JobRefusals)
    refused_exclusions: JobRefusals = field(default_factory=JobRefusals)
    refused_suspensions: JobRefusals = field(default_factory=JobRefusals)
    verified: SharedDict[int, bool] = field(default_factory=SharedDict)
    host: Host | None = None
    # Threads of their own: a line to a user may take seconds, for which no save may wait.
    output_writers: KeyedExecutor = field(default_factory=lambda: KeyedExecutor(0))

    @functools.cached_property
    def leases(self) -> Mapping[str, float]:
        """The billing period (s) of the machines of each of our nodes."""
        pools = {pool.name: rules_of(self.config, pool).lease for pool in self.config.pools}
        return {node: pools[pool.name] for node, pool in self.pool_of.items()}

    @functools.cached_property
    def reservation_ends(self) -> Mapping[tuple[str, str], float | None]:
        """By cloud and reservation, when its machines must be free of jobs, because the cloud ends
        them; None: it does not. With ``data: copy`` the files of the jobs must come back before the
        end, which begins only after the requeue.
        """
        return {
            (cloud.name, held.name): None
            if (ends_at := held.machines_end_at) is None
            else ends_at - (self.config.copy.back_within if cloud.data is Data.COPY else 0.0)
            for cloud in self.config.clouds
            for held in cloud.held
        }

    def bid(self, machine: Machine) -> float | None:
        """The bid ($/h) for that machine. None if no price takes it."""
        pool, instance = self._domain_pools.get(machine.pool), machine.instance
        if pool is None or instance.market is not Market.SPOT:
            return None
        return bid_of(self.config.cloud(pool.cloud), pool, instance.instance_type)

    def markets_of(self, pool: PoolSettings) -> Sequence[Market]:
        """The markets on which machines of the pool are bought."""
        domain_pool = self._domain_pools.get(pool.name)
        return () if domain_pool is None else domain_pool.markets

    @functools.cached_property
    def _domain_pools(self) -> Mapping[str, Pool]:
        return {pool.name: pool for pool in domain_pools(self.config, expand)}

    @functools.cached_property
    def max_ages(self) -> Mapping[str, float | None]:
        """How long (s) a machine of each pool may live; None: no limit."""
        return {pool.name: max_age(self.config, pool) for pool in self.config.pools}


def write_to_job_output(site: CheckpointSite, job: int, *lines: str) -> None:
    """Write lines to the job's own output. Raises SlurmError if Slurm keeps refusing."""
    # In one message: slurmctld passes each on in a thread of its own, so a second message often
    # comes before the first (measured on 22.05).
    text = "\n".join(lines)
    # A new job has no step yet to write the lines, so we retry for some seconds.
    for tries_left in reversed(range(MAX_OUTPUT_TRIES)):
        try:
            site.slurm.tell(job, text)
            break
        except SlurmError:
            if not tries_left:
                raise
        site.stop.wait(1.0)


def pools_by_node(config: Config) -> Mapping[str, PoolSettings]:
    """The pool's settings of each of our nodes."""
    return {node: pool for pool in config.pools for node in expand(pool.nodes)}
