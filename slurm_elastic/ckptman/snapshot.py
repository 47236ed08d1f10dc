"""One look at all that ckptman decides by: Slurm, the ledger, its own memory and prices."""

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
from slurm_elastic.ckptman.job_settings import MethodChoice, asks_for_limit, resolve_for
from slurm_elastic.ckptman.site import CheckpointSite
from slurm_elastic.config.checkpoint import PoolCheckpoint
from slurm_elastic.model.checkpoint import Image
from slurm_elastic.model.memory import Machine
from slurm_elastic.model.slurm import SlurmJob, SlurmNode
from slurm_elastic.policies.checkpoint.checkpoint import observed_mtti, save_seconds
from slurm_elastic.policies.checkpoint.threat import (
    OF_MACHINES,
    Threat,
    Threats,
    by_subject,
    moving,
    of_age,
    of_limit,
    of_node,
    of_notice,
    of_preemption,
    of_price,
    of_reservations,
)
from slurm_elastic.policies.growth.stopped import born
from slurm_elastic.policies.nodes.node_reasons import OUR_MARK
from slurm_elastic.policies.repair.list_plausibility import sound
from slurm_elastic.providers.base.prices.book import PriceBook
from slurm_elastic.state.ckptstate.facts import Migration, RecordedNotice, UnsavableRun
from slurm_elastic.state.heartbeat import CKPTMAN

log = logging.getLogger(__name__)

READ_TAGS_EVERY_S = 30.0
"""Seconds between two readings of all clouds, by a service without a ledger to read."""
PLANS_TTL_S = 5.0
"""Seconds for which plans are acted upon as they were read."""
_NO_POOL = PoolCheckpoint()
Prices = Mapping[tuple[str, str], tuple[tuple[float, float], ...]]
"""By instance type and zone: (since, $/h), ascending."""
RunKey = tuple[int, int]
"""Job and attempt."""


class Snapshot(Struct, frozen=True, kw_only=True):
    """One look. ``answered``: whether ``jobs`` are Slurm's of this look, and not of the last one
    that it answered; ``nodes`` is None where Slurm did not tell of the threatened ones.

    ``machines``: live ones by id, of before where the ledger cannot be read (``blind``);
    ``machine_of``: the one of each node; ``leaving``: of the ``threats``, what is really taken
    away; ``choices``: how each job is saved that runs on nodes of ours or on a threatened one;
    ``saves``: seconds that the next save of a job may take, by its last ones, else ``expected``;
    ``mtti``: mean seconds to an interruption of one machine by Offer.key; ``leases``: seconds paid
    at a time by node.
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
    warned: Sequence[RecordedNotice] = ()
    nodes: Mapping[str, SlurmNode] | None = None
    migrations: Mapping[RunKey, Migration] = field(default_factory=dict)
    unsavable: Mapping[int, UnsavableRun] = field(default_factory=dict)
    prices: Prices = field(default_factory=dict)
    mtti: Mapping[str, float] = field(default_factory=dict)
    expected: float = 60.0
    slack: float = 5.0
    probe: float = float("inf")
    bid: float | None = None
    leases: Mapping[str, float] = field(default_factory=dict)


class SlurmPlans:
    """The plans that Slurm has for nodes: maintenances, drains with a date, nodes that are failing.
    Read by a thread of its own, as on a large cluster that takes a while.
    """

    guarded_by: ClassVar[GuardedBy] = {"_lock": Guarded("_found", "_found_since", "_read")}

    name = "plans of Slurm"

    def __init__(self, site: CheckpointSite) -> None:
        self._site = site
        self._lock = threading.Lock()
        self._found: tuple[Threat, ...] = ()
        self._found_since = float("-inf")
        self._read = float("-inf")

    def are_old(self) -> bool:
        """Whether they may have been taken back since they were read."""
        with self._lock:
            return self._site.now() - self._read > PLANS_TTL_S

    def read(self) -> None:
        """Once. SlurmError where Slurm does not answer: what was known stays."""
        now, slurm = self._site.now(), self._site.slurm
        began = self._site.monotonic()
        with self._lock:
            self._read = now
        reserved = of_reservations(slurm.reservations(), now)
        states = (of_node(node, now, OUR_MARK) for node in slurm.nodes().values())
        found = (*reserved, *(one for one in states if one is not None))
        with self._lock:
            # The loop and the thread of the plans read at the same time: the newer reading stays.
            if began >= self._found_since:
                self._found, self._found_since = found, began

    def threats(self) -> Sequence[Threat]:
        """The ones that were read last, but for those whose time is over."""
        now = self._site.now()
        with self._lock:
            found = self._found
        return [one for one in found if one.until is None or one.until > now]


class SnapshotReader:
    """Remembers what could be read last, for the time in which it cannot be."""

    guarded_by: ClassVar[GuardedBy] = {
        # Also held while the ledger is read: pollers and the loop read it at the same time, and an
        # older reading must not take the place of a newer one.
        "_lock": Guarded("_machines", "_from_ledger", "_tagged_next", "_blind"),
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
        self._tagged_next = float("-inf")
        self._mtti: Mapping[str, float] = {}
        self._blind = False
        self._reports = ReportOnce[str]()

    def read(self) -> Snapshot:
        """Everything once. sqlite3.Error where our own memory cannot be read."""
        site = self._site
        machines, is_blind = self._read_machines(())
        warned = site.state.notices()
        # Before Slurm's jobs: what a job has come to since is seen in them.
        migrations = {(m.run.job, m.run.attempt): m for m in site.state.migrations()}
        jobs = self._jobs()
        known = site.jobs.last if jobs is None else jobs
        images: defaultdict[int, list[Image]] = defaultdict(list)
        for image in site.state.images():
            images[image.job].append(image)
        now = site.now()  # no image that is seen is later
        # Ascending: of two machines of one node ``machine_of`` has the newer.
        newest = sorted(machines.values(), key=lambda m: m.instance.launched)
        settings = site.config.checkpoint
        prices = self._prices.prices() if self._prices else {}
        of_nodes = [
            *threats_of_notices(warned, machines),
            *self._plans(),
            *self._ends(machines, prices, now),
        ]
        threatened = {one.what for one in of_nodes}
        choices = {
            job.id: choose_method(site, job)
            for job in known.values()
            if self._counts(job, threatened)
        }
        saves = {n: save_seconds([i.seconds for i in some], settings.expected)
                 for n, some in images.items()}  # fmt: skip
        of_jobs = self._of_jobs(known, choices, saves, now)
        threats = by_subject([*of_nodes, *of_jobs])
        return Snapshot(
            now=now,
            jobs=known,
            answered=jobs is not None,
            machines=machines,
            machine_of={m.instance.node: m for m in newest if m.instance.node},
            warned=warned,
            blind=is_blind,
            threats=threats,
            leaving=moving(threats),
            nodes=self._nodes(sorted({t.what for t in of_nodes if t.cause in OF_MACHINES})),
            images=images,
            saves=saves,
            choices=choices,
            migrations=migrations,
            unsavable=site.state.unsavable(),
            probe=settings.probe,
            prices=prices,
            mtti=self._mtti,
            expected=settings.expected,
            slack=settings.slack,
            bid=settings.prices.bid,
            leases=site.leases,
        )

    def _ends(self, machines: Mapping[str, Machine], prices: Prices, now: float) -> list[Threat]:
        """Machines that come to their maximum age, or cost more than is bid."""
        bid, found = self._site.config.checkpoint.prices.bid, list[Threat | None]()
        for machine in machines.values():
            one = machine.instance
            if one.node:
                age = self._site.max_ages.get(machine.pool)
                if age is not None:
                    # By this head's clock, as elasticd counts it: another one may differ by more.
                    found.append(of_age(one.node, born(machine), age, now))
                if bid is not None:
                    costs = prices.get((one.instance_type, one.zone), ())
                    found.append(of_price(one.node, costs, bid))
        return [one for one in found if one is not None]

    def _of_jobs(
        self,
        jobs: Mapping[int, SlurmJob],
        choices: Mapping[int, MethodChoice],
        saves: Mapping[int, float],
        now: float,
    ) -> list[Threat]:
        """Time limits that end soon, of jobs that may go on after them; and jobs that can be saved
        and that Slurm preempts.
        """
        state = self._site.state
        expected = self._site.config.checkpoint.expected
        found = list[Threat | None]()
        for number, choice in choices.items():
            job = jobs[number]
            if job.is_suspended:  # its time limit does not go on, either
                continue
            if choice.renewals and job.batch:
                renewed = state.renewals(number, job.restarts)
                save = saves.get(number, expected)
                found.append(of_limit(job, save, choice.renewals, renewed, now))
            if job.preempted and choice.method != "none" and job.batch:
                found.append(of_preemption(job, now))
        return [one for one in found if one is not None]

    def machines(self, known: Collection[str] = ()) -> Mapping[str, Machine]:
        """The live machines by id; those of the last time while the ledger cannot be read, or if
        all ``known`` ids are among them with their nodes. Also for pollers' threads.
        """
        return self._read_machines(known)[0]

    def _read_machines(self, known: Collection[str]) -> tuple[Mapping[str, Machine], bool]:
        """The same, and whether they are of before because the ledger cannot be read."""
        with self._lock:
            last = self._machines
            if known and all(i in last and last[i].instance.node for i in known):
                return last, bool(self._blind)
            if self._read_ledger() or self._from_ledger or not self._is_tagged_due():
                return self._machines, bool(self._blind)
            last = self._machines
        # We release the lock, because a cloud may take long; other threads use the last machines.
        found = self._tagged(last)
        with self._lock:
            if not self._from_ledger:
                self._machines = found
            return self._machines, bool(self._blind)

    def _read_ledger(self) -> bool:
        """Whether the ledger could be read."""
        try:
            self._site.ledger.refresh()
            self._machines = {m.instance.id: m for m in self._site.ledger.machines.live()}
            self._blind, self._from_ledger = False, bool(self._machines)
            self._reports.over("ledger")
        except sqlite3.Error as error:
            if self._reports.is_news("ledger", str(error)):
                log.warning("the ledger cannot be read, machines are those of before: %s", error)
            self._blind = True
            return False
        return True

    def _is_tagged_due(self) -> bool:
        """Whether this thread is to read the clouds now; no other one does for a while."""
        clock = self._site.monotonic()
        if clock < self._tagged_next:
            return False
        self._tagged_next = clock + READ_TAGS_EVERY_S
        return True

    def _tagged(self, last: Mapping[str, Machine]) -> Mapping[str, Machine]:
        """The machines by their tags alone, for a service that was started without a ledger to
        read: only a machine's node, state and address are known then. A cloud that cannot be read
        has those of before.
        """
        site, found = self._site, dict(last)
        for name, provider in site.providers.items():
            try:
                listed = sound(provider.instances(), lambda _: 0.0, site.now()).machines
            except Exception as error:  # noqa: BLE001 - whatever it raises, it is no list
                log.warning("cloud cannot be read cloud=%s error=%s", name, error)
                continue
            found = {i: m for i, m in found.items() if m.instance.cloud != name}
            for one in listed:
                pool = site.pool_of.get(one.node)
                found[one.id] = Machine(
                    instance=one, pool=pool.name if pool else "", last_seen=site.now()
                )
        return found

    def _jobs(self) -> Mapping[int, SlurmJob] | None:
        """None while Slurm does not answer: what was known of running jobs then still serves to
        save them, and nothing else is done.
        """
        site = self._site
        try:
            jobs = site.jobs.read()
        except SlurmError as error:
            site.recorder.report_failure("slurm (ckptman)", error)
            return None
        site.recorder.report_health("slurm (ckptman)", None)
        return jobs

    def _nodes(self, names: Sequence[str]) -> Mapping[str, SlurmNode] | None:
        if not names:
            return {}
        try:
            return self._site.slurm.nodes(names)
        except SlurmError as error:
            log.warning("nodes cannot be read: %s", error)
            return None

    def _counts(self, job: SlurmJob, threatened: Collection[str]) -> bool:
        """Whether a job runs, or is suspended, on nodes of ours or on threatened ones, asks to go
        on after its time limit, or is preempted.
        """
        site = self._site
        if not is_working(job) and not job.is_suspended:
            return False
        if any(node in site.pool_of or node in threatened for node in job.nodes):
            return True
        return asks_for_limit(job.comment) or bool(job.preempted)

    def count_interruptions(self, since: float) -> None:
        """Count the interruptions since then (Unix time)."""
        site, now = self._site, self._site.now()
        try:
            known = site.ledger.machines.live(ended_since=since)
        except sqlite3.Error:
            return
        self._mtti = mean_times_to_interruption(known, site.state.interruptions(since), now)


def is_working(job: SlurmJob) -> bool:
    """Whether it works on its nodes."""
    return "RUNNING" in job.states and not job.states & {"CONFIGURING", "COMPLETING"}


def choose_method(site: CheckpointSite, job: SlurmJob) -> MethodChoice:
    """How a job is saved: by its own word, its pool's or the site's, if that can be used here."""
    pool = site.pool_of.get(job.nodes[0]) if job.nodes else None
    section = pool.checkpoint if pool else _NO_POOL
    choice = resolve_for(job, section, site.config.checkpoint)
    if choice.method in ("none", *site.checkpointers):
        return choice
    why = (
        f"method {choice.method} cannot be used on this site; the log of {CKPTMAN} tells the "
        "administrators why"
    )
    return MethodChoice(method="none", policy=choice.policy, refused=why)


def threats_of_notices(
    warned: Iterable[RecordedNotice], machines: Mapping[str, Machine]
) -> Iterable[Threat]:
    """The threats of notices. ``machines``: the live ones by id."""
    for one in warned:
        machine = machines.get(one.notice.instance)
        node = machine.instance.node if machine else one.notice.node
        if node:
            yield of_notice(node, one.notice)


def mean_times_to_interruption(
    machines: Iterable[Machine], interruptions: Mapping[str, int], now: float
) -> Mapping[str, float]:
    """Mean seconds to an interruption of one machine by offer: machine-seconds that were seen for
    each machine that was taken.
    """
    uptime: defaultdict[str, float] = defaultdict(float)
    for machine in machines:
        end = now if machine.ended_at is None else machine.ended_at
        uptime[machine.instance.offer_key] += max(end - machine.instance.launched, 0.0)
    return {
        offer: observed_mtti(seconds, interruptions.get(offer, 0))
        for offer, seconds in uptime.items()
    }
