"""The text of the note on each job that waits for us, or whose machines boot.

Facts that PrivateData hides from users are left out, because all users who may see the job see its
AdminComment.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.base.ttl_cache import TtlCache
from slurm_elastic.controller.context import Site
from slurm_elastic.features.growth.closed_pools import read_obstacles
from slurm_elastic.features.growth.waiting_jobs import in_order
from slurm_elastic.features.waits.wait_situation import WaitFacts, situation_of
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.policies.launch.waiting import fixed_arrays, is_counted
from slurm_elastic.policies.waits.situation import MONEY, NODES
from slurm_elastic.policies.waits.wait import Waits
from slurm_elastic.policies.waits.wait_note import boot_note, wait_note
from slurm_elastic.slurm.client.site import read_site

MIN_WAIT_S = 30.0
"""Seconds of waiting from which a job gets a note: jobs that wait for less time are mostly about to
start. A job that was requeued gets a note at once, because Slurm counts its wait from the requeue.
"""
SETTINGS_TTL_S = 60.0


class WaitTexts:
    """Finds the text for each job."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._hidden = TtlCache[None, frozenset[str]](site.monotonic)

    def of(self, jobs: Sequence[SlurmJob]) -> Iterator[tuple[int, str]]:
        """Yield job and text, highest priority first. ``jobs``: all jobs that Slurm has."""
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
        if not waiting:
            return
        waits = self._read_waits(jobs, now)
        for job in waiting:
            if note := wait_note(waits.of(job)):
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

    def _read_waits(self, jobs: Sequence[SlurmJob], now: float) -> Waits:
        site = self._site
        hidden = self._hidden.get(None, self._read_hidden, ttl_s=SETTINGS_TTL_S)
        facts = WaitFacts(
            now=now,
            obstacles=read_obstacles(site.config, site.ledger, now).without(hidden),
            nodes=site.slurm.nodes(),
            partition_states=site.slurm.partition_states(),
            max_times=site.slurm.max_times(),
            reservations=site.slurm.reservations(),
            hides_nodes=NODES in hidden,
            fixed_arrays=fixed_arrays(jobs),
        )
        return Waits(situation_of(site.config, facts))

    def _read_hidden(self) -> frozenset[str]:
        """The words of PrivateData. If slurm.conf cannot be read, all words that matter here."""
        try:
            private = read_site(self._site.config.slurm).items("PrivateData")
        except ConfigError:
            return MONEY | {NODES}
        return frozenset(word.lower() for word in private)
