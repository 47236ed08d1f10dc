"""Reads everything that ckptman decides on, once per tick: Slurm, the ledger, its own state and
prices.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import ClassVar

from msgspec import Struct, field

from slurm_elastic.base.errors import SlurmError
from slurm_elastic.base.guards import Guarded, GuardedBy
from slurm_elastic.base.report_once import ReportOnce
from slurm_elastic.ckptman.site import CheckpointSite
from slurm_elastic.config.job_checkpoint import MethodChoice, asks_for_limit, resolve_for
from slurm_elastic.model.causes.save_refusals import MethodNotHere
from slurm_elastic.model.checkpoint import Image
from slurm_elastic.model.cluster import Notice
from slurm_elastic.model.memory import PLANS, Machine
from slurm_elastic.model.price_feed import PriceKey
from slurm_elastic.model.slurm import SlurmJob, SlurmNode
from slurm_elastic.policies.checkpoint.checkpoint import observed_mtti, save_seconds
from slurm_elastic.policies.checkpoint.threat import (
    OF_MACHINES,
    SavesByNode,
    Threat,
    Threats,
    age_threat,
    by_subject,
    longest_saves,
    moving,
    of_end,
    of_limit,
    of_node,
    of_notice,
    of_preemption,
    of_price,
    of_reservations,
)
from slurm_elastic.policies.growth.stopped import born
from slurm_elastic.policies.nodes.node_reasons import OUR_MARK
from slurm_elastic.policies.repair.list_plausibility import sanitize_listing
from slurm_elastic.providers.base.prices.book import PriceBook, price_key
from slurm_elastic.state.ckptstate.facts import Migration, RecordedNotice, UnsavableRun

log = logging.getLogger(__name__)

READ_TAGS_EVERY_S = 30.0
"""Seconds between two readings of the clouds' machine lists, if the service has no ledger to read.
"""
PLANS_TTL_S = 5.0
"""The age (s) up to which we act on Slurm's plans."""
Prices = Mapping[PriceKey, tuple[tuple[float, float], ...]]
"""Pairs of (start in Unix time, $/h), ascending, by pool, instance type and zone."""
RunKey = tuple[int, int]
"""Job and attempt."""


class Snapshot(Struct, frozen=True, kw_only=True):
    """Everything that was read for one tick. ``answered``: ``jobs`` are from this tick; otherwise
    they are the last ones that Slurm listed. ``nodes``: the threatened nodes; None if Slurm did not
    answer.

    ``machines``: live machines by id, from an earlier tick if the ledger cannot be read
    (``blind``). ``machine_of``: the newest machine of each node. ``leaving``: the ``threats`` that
    really take a node or a job's time away. ``choices``: how to save each job that runs on our
    nodes or on threatened ones. ``saves``: seconds that the next save of a job may take, measured
    at its last saves (``expected`` if there are none). ``mtti``: mean seconds to an interruption of
    one machine, by Offer.key. ``bids``: the bid ($/h) for each machine, by id. ``leases``: the
    billing period (s) of each node's machine.
    """

    now: float
    jobs: Mapping[int, SlurmJob]
    machines: Mapping[str, Machine]
    machine_of: Mapping[str, Machine]
    threats: Threats
    images: Mapping[int, Sequence[Image]]
    choices: Mapping[int, MethodChoice]
    saves: Mapping[int, float] = field(default_factory=dict)
    answered: bool = True
    blind: bool = False
    leaving: Mapping[str, Threat] = field(default_factory=dict)
    notices: Sequence[RecordedNotice] = ()
    nodes: Mapping[str, SlurmNode] | None = None
    migrations: Mapping[RunKey, Migration] = field(default_factory=dict)
    unsavable: Mapping[int, UnsavableRun] = field(default_factory=dict)
    prices: Prices = field(default_factory=dict)
    mtti: Mapping[str, float] = field(default_factory=dict)
    expected: float = 60.0
    slack: float = 5.0
    probe: float = float("inf")
    bids: Mapping[str, float | None] = field(default_factory=dict)
    leases: Mapping[str, float] = field(default_factory=dict)


class SlurmPlans:
    """Slurm's plans for nodes: maintenance reservations, drains with a date, failing nodes. A
    thread of its own reads them, because that takes a while on a large cluster.
    """

    guarded_by: ClassVar[GuardedBy] = {
        "_lock": Guarded("_plans", "_plans_read_at", "_last_read_at")
    }

    name = PLANS

    def __init__(self, site: CheckpointSite) -> None:
        self._site = site
        self._lock = threading.Lock()
        self._plans: tuple[Threat, ...] = ()
        self._plans_read_at = float("-inf")
        self._last_read_at = float("-inf")

    def are_old(self) -> bool:
        """Whether the plans may have been cancelled after they were read."""
        with self._lock:
            return self._site.now() - self._last_read_at > PLANS_TTL_S

    def read(self) -> None:
        """Read the plans once. Raises SlurmError if Slurm does not answer; the last plans then
        stay.
        """
        now, slurm = self._site.now(), self._site.slurm
        began_at = self._site.monotonic()
        with self._lock:
            self._last_read_at = now
        reserved = of_reservations(slurm.reservations(), now)
        node_threats = (of_node(node, now, OUR_MARK) for node in slurm.nodes().values())
        plans = (*reserved, *(threat for threat in node_threats if threat is not None))
        with self._lock:
            # The loop and the plans' thread may read at the same time: the newer reading must win.
            if began_at >= self._plans_read_at:
                self._plans, self._plans_read_at = plans, began_at

    def threats(self) -> Sequence[Threat]:
        """The threats of the last reading whose time is not over."""
        now = self._site.now()
        with self._lock:
            plans = self._plans
        return [threat for threat in plans if threat.until is None or threat.until > now]


class SnapshotReader:
    """Reads snapshots. It keeps the last machines for when the ledger cannot be read."""

    guarded_by: ClassVar[GuardedBy] = {
        # The lock is also held while the ledger is read: pollers and the loop read it at the same
        # time, and an older reading must not replace a newer one.
        "_lock": Guarded("_machines", "_from_ledger", "_read_tags_at", "_blind"),
    }

    def __init__(
        self,
        site: CheckpointSite,
        prices: PriceBook | None,
        plans: Callable[[], Sequence[Threat]] = tuple,
    ) -> None:
        self._site = site
        self._prices = prices
        self._plans = plans
        self._lock = threading.Lock()
        self._machines: Mapping[str, Machine] = {}
        self._from_ledger = False
        self._read_tags_at = float("-inf")
        self._mtti: Mapping[str, float] = {}
        self._blind = False
        self._reports = ReportOnce[str]()

    def read(self) -> Snapshot:
        """Read everything once. Raises sqlite3.Error if our own state cannot be read."""
        site = self._site
        machines, is_blind = self._read_machines(())
        notices = site.state.notices()
        # Before Slurm's jobs: a job's progress after this reading is then visible in the job list.
        migrations = {(move.run.job, move.run.attempt): move for move in site.state.migrations()}
        jobs = self._read_jobs()
        last_jobs = site.jobs.last if jobs is None else jobs
        replaced = self._forget_earlier_jobs(jobs or {})
        migrations = {run: move for run, move in migrations.items() if run[0] not in replaced}
        images = self._read_images()
        now = site.now()  # after the images, so that no image is from the future
        settings = site.config.checkpoint
        prices = self._prices.prices() if self._prices else {}
        saves = {number: save_seconds([i.seconds for i in job_images], settings.expected_duration)
                 for number, job_images in images.items()}  # fmt: skip
        saves_by_node = longest_saves(last_jobs.values(), saves, settings.expected_duration)
        node_threats = [
            *threats_of_notices(notices, machines),
            *self._plans(),
            *self._threats_of_machines(machines, prices, now, saves_by_node),
        ]
        threatened = {threat.target for threat in node_threats}
        choices = {
            job.id: choose_method(site, job)
            for job in last_jobs.values()
            if self._needs_method(job, threatened)
        }
        job_threats = self._threats_of_jobs(last_jobs, choices, saves, now)
        threats = by_subject([*node_threats, *job_threats])
        return Snapshot(
            now=now,
            jobs=last_jobs,
            answered=jobs is not None,
            machines=machines,
            machine_of=_newest_by_node(machines.values()),
            notices=notices,
            blind=is_blind,
            threats=threats,
            leaving=moving(threats),
            nodes=self._read_nodes(
                sorted({threat.target for threat in node_threats if threat.cause in OF_MACHINES})
            ),
            images=images,
            saves=saves,
            choices=choices,
            migrations=migrations,
            unsavable=site.state.unsavable(),
            probe=settings.probe_after,
            prices=prices,
            mtti=self._mtti,
            expected=settings.expected_duration,
            slack=settings.deadline_margin,
            bids={id_: site.bid(machine) for id_, machine in machines.items()} if prices else {},
            leases=site.leases,
        )

    def _forget_earlier_jobs(self, jobs: Mapping[int, SlurmJob]) -> frozenset[int]:
        """Forget what is recorded about jobs whose numbers Slurm has given to other jobs. Slurm
        uses a number again after MaxJobId, and after a slurmctld has lost its state.
        """
        replaced = self._site.state.forget_earlier_jobs({n: job.key for n, job in jobs.items()})
        for number in sorted(replaced):
            log.warning(
                "another job has this number now: the earlier job's records are deleted job=%d",
                number,
            )
        return replaced

    def _read_images(self) -> Mapping[int, Sequence[Image]]:
        """The images of each job, by job number."""
        images: defaultdict[int, list[Image]] = defaultdict(list)
        for image in self._site.state.images():
            images[image.job].append(image)
        return images

    def _threats_of_machines(
        self, machines: Mapping[str, Machine], prices: Prices, now: float, saves: SavesByNode
    ) -> list[Threat]:
        """Threats of machines that reach their maximum age or cost more than the bid."""
        threats = list[Threat | None]()
        for machine in machines.values():
            instance = machine.instance
            if node := instance.node:
                save_s = saves.get(node, 0.0)
                max_age = self._site.max_ages.get(machine.pool)
                # We use this head's clock, as slurm-elasticd does: another may differ by more.
                threats.append(age_threat(node, born(machine), max_age, now, save_s))
                if reservation := instance.reservation:
                    ends_at = self._site.reservation_ends.get((instance.cloud, reservation))
                    threats.append(of_end(node, reservation, ends_at, now, save_s))
                if steps := prices.get(price_key(machine)):
                    threats.append(of_price(node, steps, self._site.bid(machine)))
        return [threat for threat in threats if threat is not None]

    def _threats_of_jobs(
        self,
        jobs: Mapping[int, SlurmJob],
        choices: Mapping[int, MethodChoice],
        saves: Mapping[int, float],
        now: float,
    ) -> list[Threat]:
        """Threats of jobs: a time limit that ends soon, for jobs that may continue after it, and
        preemption, for jobs that can be saved.
        """
        expected_s = self._site.config.checkpoint.expected_duration
        threats = list[Threat | None]()
        for number, choice in choices.items():
            job = jobs[number]
            if job.is_suspended:  # Slurm also stops the clock of its time limit.
                continue
            if choice.renewals and job.batch:
                renewed = self._site.state.renewals(number, job.restarts)
                save_s = saves.get(number, expected_s)
                threats.append(of_limit(job, save_s, choice.renewals, renewed, now))
            if job.preempted and choice.method != "none" and job.batch:
                threats.append(of_preemption(job, now))
        return [threat for threat in threats if threat is not None]

    def machines(self, known: Collection[str] = ()) -> Mapping[str, Machine]:
        """The live machines by id, also for pollers' threads; the last known machines while the
        ledger cannot be read. The ledger is not read if all ``known`` ids are among the last
        machines and have nodes.
        """
        return self._read_machines(known)[0]

    def _read_machines(self, known: Collection[str]) -> tuple[Mapping[str, Machine], bool]:
        """Read the live machines. Also return whether they are old because the ledger cannot be
        read.
        """
        with self._lock:
            last_machines = self._machines
            if known and all(
                id_ in last_machines and last_machines[id_].instance.node for id_ in known
            ):
                return last_machines, bool(self._blind)
            if self._read_ledger() or self._from_ledger or not self._is_time_to_read_tags():
                return self._machines, bool(self._blind)
            last_machines = self._machines
        # We release the lock, because a cloud may take long; other threads use the last machines.
        tagged_machines = self._read_tagged_machines(last_machines)
        with self._lock:
            # Another thread may have read the ledger since, which knows more than the tags.
            if not self._from_ledger:
                self._machines = tagged_machines
            return self._machines, bool(self._blind)

    def _read_ledger(self) -> bool:
        """Read the machines from the ledger. Returns False if it cannot be read."""
        try:
            self._site.ledger.refresh()
            self._machines = {m.instance.id: m for m in self._site.ledger.machines.live()}
            self._blind, self._from_ledger = False, bool(self._machines)
            self._reports.clear("ledger")
        except sqlite3.Error as error:
            if self._reports.is_news("ledger", str(error)):
                log.warning(
                    "the ledger cannot be read, the last known machines are used: %s", error
                )
            self._blind = True
            return False
        return True

    def _is_time_to_read_tags(self) -> bool:
        """Whether this thread should read the clouds now; if so, no other does for a while."""
        clock = self._site.monotonic()
        if clock < self._read_tags_at:
            return False
        # Before the reading, which takes long: other threads must not begin it as well.
        self._read_tags_at = clock + READ_TAGS_EVERY_S
        return True

    def _read_tagged_machines(self, last_machines: Mapping[str, Machine]) -> Mapping[str, Machine]:
        """The machines by their clouds' tags, for a service that started without a readable ledger.
        Only node, state and address of each machine are known then. If a cloud cannot be read, its
        last machines are kept.
        """
        site, machines = self._site, dict(last_machines)
        for name, provider in site.providers.items():
            try:
                listed = sanitize_listing(provider.instances(), lambda _: 0.0, site.now()).machines
            except Exception as error:  # noqa: BLE001 - whatever it raises, it is no list
                log.warning("cloud cannot be read cloud=%s error=%s", name, error)
                continue
            machines = {
                id_: machine for id_, machine in machines.items() if machine.instance.cloud != name
            }
            for instance in listed:
                pool = site.pool_of.get(instance.node)
                machines[instance.id] = Machine(
                    instance=instance, pool=pool.name if pool else "", last_seen=site.now()
                )
        return machines

    def _read_jobs(self) -> Mapping[int, SlurmJob] | None:
        """The jobs; None if Slurm does not answer. The last known jobs are then used to save
        running jobs, and nothing else is done.
        """
        site = self._site
        try:
            jobs = site.jobs.read()
        except SlurmError as error:
            site.recorder.report_failure("slurm (ckptman)", error)
            return None
        site.recorder.report_health("slurm (ckptman)", None)
        return jobs

    def _read_nodes(self, names: Sequence[str]) -> Mapping[str, SlurmNode] | None:
        if not names:
            return {}
        try:
            return self._site.slurm.nodes(names)
        except SlurmError as error:
            log.warning(
                "the threatened nodes cannot be read from Slurm, they stay as they are: %s", error
            )
            return None

    def _needs_method(self, job: SlurmJob, threatened: Collection[str]) -> bool:
        """Whether we must choose a method for a job that runs or is suspended: it is on our nodes
        or on threatened ones, asks to continue after its time limit, or is preempted.
        """
        site = self._site
        if not is_working(job) and not job.is_suspended:
            return False
        if any(node in site.pool_of or node in threatened for node in job.nodes):
            return True
        return asks_for_limit(job.comment) or bool(job.preempted)

    def count_interruptions(self, since: float) -> None:
        """Count the interruptions since that time (Unix time)."""
        site, now = self._site, self._site.now()
        try:
            machines = site.ledger.machines.live(ended_since=since)
        except sqlite3.Error:
            return
        self._mtti = mean_times_to_interruption(machines, site.state.interruptions(since), now)


def is_working(job: SlurmJob) -> bool:
    """Whether the job does work on its nodes."""
    return "RUNNING" in job.states and not job.states & {"CONFIGURING", "COMPLETING"}


def choose_method(site: CheckpointSite, job: SlurmJob) -> MethodChoice:
    """How a job is saved: by its own request, its pool or the site, if that method works on this
    site.
    """
    pool = site.pool_of.get(job.nodes[0]) if job.nodes else None
    choice = resolve_for(job, pool, site.config)
    if choice.method in ("none", *site.checkpointers):
        return choice
    refusal = MethodNotHere(method=choice.method)
    return MethodChoice(method="none", policy=choice.policy, refused=refusal)


def threats_of_notices(
    notices: Iterable[RecordedNotice], machines: Mapping[str, Machine]
) -> Iterable[Threat]:
    """The threats of notices. ``machines``: the live machines by id."""
    newest_machines = _newest_by_node(machines.values())
    for recorded in notices:
        machine = machines.get(recorded.notice.instance)
        node = machine.instance.node if machine else recorded.notice.node
        if node and (machine or not _is_of_earlier(recorded.notice, newest_machines.get(node))):
            yield of_notice(node, recorded.notice)


def _is_of_earlier(notice: Notice, machine: Machine | None) -> bool:
    """Whether the notice is about an earlier machine of the node than ``machine``. If the earlier
    machine ended while this service did not run, ``NoticeEnds`` closes the notice only after this
    tick has begun its moves.
    """
    # A list without the noticed machine proves no end, but a later machine of the node does.
    is_later = machine is not None and machine.instance.launched > notice.seen
    return bool(notice.instance) and is_later


def mean_times_to_interruption(
    machines: Iterable[Machine], interruptions: Mapping[str, int], now: float
) -> Mapping[str, float]:
    """Mean seconds to an interruption of one machine, by offer: the observed machine-seconds
    divided by the number of interrupted machines.
    """
    uptime_s: defaultdict[str, float] = defaultdict(float)
    for machine in machines:
        end_at = now if machine.ended_at is None else machine.ended_at
        uptime_s[machine.instance.offer_key] += max(end_at - machine.instance.launched, 0.0)
    return {
        offer: observed_mtti(seconds, interruptions.get(offer, 0))
        for offer, seconds in uptime_s.items()
    }


def _newest_by_node(machines: Iterable[Machine]) -> dict[str, Machine]:
    """The machine of each node. If a node has two, the newer one wins."""
    # The newest comes last, so it replaces the older ones in the dictionary.
    by_age = sorted(machines, key=lambda machine: machine.instance.launched)
    return {machine.instance.node: machine for machine in by_age if machine.instance.node}
