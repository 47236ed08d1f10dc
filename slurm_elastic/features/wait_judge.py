"""The sentence about each job that waits for us: the pools that it lists start no machine for it.

``explain`` makes the same sentence from the same facts. Facts that PrivateData hides from users are
left out, because all users who may see the job see its AdminComment.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.base.ttl_cache import TtlCache
from slurm_elastic.controller.budget import find_barred_payers
from slurm_elastic.controller.context import Site
from slurm_elastic.features.closed_pools import bars, retry_times
from slurm_elastic.features.pool_cases import WaitFacts, pool_cases
from slurm_elastic.features.waiting_jobs import in_order
from slurm_elastic.model.memory import UnhelpedJob
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.policies.launch.verdict import Asker, PoolCase, verdicts
from slurm_elastic.policies.launch.wait_note import boot_note, wait_note
from slurm_elastic.policies.launch.waiting import fixed_arrays, is_counted
from slurm_elastic.policies.money.account_budgets import Overdrawn, barring
from slurm_elastic.slurm.client.site import read_site

MIN_WAIT_S = 30.0
"""Seconds of waiting from which a job gets a note: jobs that wait for less time are mostly about to
start. A job that was requeued gets a note at once, because Slurm counts its wait from the requeue.
"""
MAX_SIZES = 50
"""The maximum of different numbers of nodes that are judged in a look. Jobs of further sizes get no
note then.
"""
SETTINGS_TTL_S = 60.0
_NODES, _MONEY = "nodes", frozenset({"usage", "accounts"})


class WaitJudge:
    """Finds the sentence about each job."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._hidden = TtlCache[None, frozenset[str]](site.monotonic)

    def notes(self, jobs: Sequence[SlurmJob]) -> Iterator[tuple[int, str]]:
        """Yield job and sentence, highest priority first. ``jobs``: all jobs that Slurm has."""
        now = self._site.now()
        starting = [
            job for job in jobs if "CONFIGURING" in job.states and now - job.start >= MIN_WAIT_S
        ]
        machines = self._site.ledger.machines.live() if starting else ()
        booting = {machine.instance.node: machine for machine in machines if machine.boots}
        for job in starting:
            its_machines = [booting[node] for node in job.nodes if node in booting]
            if note := boot_note(job.nodes, its_machines):
                yield job.id, note
        waiting = in_order(job for job in jobs if self._waits(job, now))
        if waiting and (look := self._look(waiting, jobs, now)) is not None:
            for job in waiting:
                if note := look.note(job):
                    yield job.id, note

    def _waits(self, job: SlurmJob, now: float) -> bool:
        """Whether a new machine may start the job, which has waited for some time."""
        return (
            "PENDING" in job.states
            and not self._partitions.isdisjoint(job.partitions)
            and (job.restarts > 0 or now - max(job.submit, job.eligible) >= MIN_WAIT_S)
            # After each try that failed, Slurm keeps the job for two minutes with BeginTime.
            and (is_counted(job, now) or job.is_requeue_hold(now))
        )

    @property
    def _partitions(self) -> frozenset[str]:
        return frozenset(cloud.partition_name for cloud in self._site.clouds.values())

    def _look(
        self, waiting: Sequence[SlurmJob], jobs: Sequence[SlurmJob], now: float
    ) -> _Look | None:
        """Read what may keep these jobs waiting; None if nothing does."""
        site = self._site
        hidden = self._hidden.get(None, self._read_hidden, ttl_s=SETTINGS_TTL_S)
        hides_money = not hidden.isdisjoint(_MONEY)
        hides_bars = hides_money or _NODES in hidden
        sizes = list(dict.fromkeys(job.node_count for job in waiting))[:MAX_SIZES]
        closed = {size: self._closed(size, now, hides=hides_bars) for size in sizes}
        payers = {} if hides_money else find_barred_payers(site.config, site.ledger, now)
        rows = site.ledger.growth_guard.jobs(now)
        retry_at = retry_times(site.config, site.ledger, now)
        if not (any(closed.values()) or payers or rows or retry_at):
            return None
        facts = WaitFacts(
            now=now,
            nodes=site.slurm.nodes(),
            partition_states=site.slurm.partition_states(),
            reservations=site.slurm.reservations(),
        )
        unhelped = {row.job: replace(row, nodes=()) if _NODES in hidden else row for row in rows}
        cases = [*pool_cases(site.config, facts)]
        return _Look(
            site, now, cases, closed, payers, unhelped, retry_at, _NODES in hidden,
            fixed_arrays(jobs), {},
        )  # fmt: skip

    def _closed(self, wants: int, now: float, *, hides: bool) -> dict[str, str]:
        """Return the reason by pool that starts no machines for a job of so many nodes."""
        closed_bars = bars(self._site.config, self._site.ledger, wants, now)
        return {bar.pool: (bar.public if hides else bar).reason for bar in closed_bars}

    def _read_hidden(self) -> frozenset[str]:
        """The words of PrivateData. If slurm.conf cannot be read, all words that matter here."""
        try:
            private = read_site(self._site.config.slurm).items("PrivateData")
        except ConfigError:
            return _MONEY | {_NODES}
        return frozenset(word.lower() for word in private)


class _Look(NamedTuple):
    """The facts of one look. ``cases``: all pools without their bars, which depend on the number of
    nodes that a job asks for (``closed``). ``judged``: the sentences of requests seen before.
    """

    site: Site
    now: float
    cases: Sequence[PoolCase]
    closed: Mapping[int, Mapping[str, str]]
    payers: Mapping[str, Overdrawn]
    unhelped: Mapping[int, UnhelpedJob]
    retry_at: Mapping[str, float]
    hides_nodes: bool
    fixed_arrays: frozenset[int]
    judged: dict[object, str]

    def note(self, job: SlurmJob) -> str:
        """The sentence; "" if the job waits for something else."""
        closed = self.closed.get(job.node_count)
        if closed is None:
            return ""
        overdrawn = barring(self.payers, job.account, job.user)
        barred = overdrawn.reason if overdrawn else ""
        unhelped = self.unhelped.get(job.id)
        # Tens of thousands of jobs have few different requests. The fields that no predicate reads
        # are left out, so that equal requests are equal keys.
        request = SlurmJob(
            id=0, states=job.states, account=job.account, partitions=job.partitions,
            reason=job.reason, requeue=job.requeue, restarts=min(job.restarts, 1),
            array=job.array if job.array in self.fixed_arrays else 0, batch=job.batch,
            required=job.required, node_count=job.node_count, cpus=job.cpus, limit=job.limit,
            gres=job.gres, job_gres=job.job_gres, features=job.features, qos=job.qos,
            eligible=job.eligible if job.restarts else 0.0, description=job.description,
            reservation=job.reservation, excluded=job.excluded, node_cpus=job.node_cpus,
            node_memory=job.node_memory, cpu_memory=job.cpu_memory,
            gres_cpus=job.gres_cpus, gres_memory=job.gres_memory,
        )  # fmt: skip
        key = (request, barred)
        if unhelped is not None:
            return self._judge(job, closed, barred, unhelped)
        if key not in self.judged:
            self.judged[key] = self._judge(job, closed, barred, None)
        return self.judged[key]

    def _judge(
        self,
        job: SlurmJob,
        closed: Mapping[str, str],
        barred: str,
        unhelped: UnhelpedJob | None,
    ) -> str:
        asker = Asker(
            job=job, now=self.now, unhelped=unhelped, fixed_arrays=self.fixed_arrays,
            drain_terms=self.site.config.slurm.drain_terms,
        )  # fmt: skip
        cases = [
            replace(
                case,
                bar=(barred if self.site.is_public(case.pool) else "")
                or closed.get(case.pool.name, ""),
            )
            for case in self.cases
            if case.partition in job.partitions
        ]
        judged = verdicts(asker, cases)
        return wait_note(judged, self.retry_at, hides_nodes=self.hides_nodes)
