"""A whole site of one seed: both services in threads of their own over the fakes, users and their
jobs, and a head node whose disk and clock may fail.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import logging
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from msgspec.structs import replace as altered

from slurm_elastic.base import faults
from slurm_elastic.base.errors import SlurmElasticError
from slurm_elastic.base.hostlist import compress
from slurm_elastic.ckptman import service as ckptman_service
from slurm_elastic.ckptman.executor import KeyedExecutor
from slurm_elastic.ckptman.poller import Poller
from slurm_elastic.ckptman.recorder import BufferedRecorder
from slurm_elastic.ckptman.service import Service
from slurm_elastic.ckptman.site import CheckpointSite as CkptSite
from slurm_elastic.ckptman.site import JobList, pools_by_node
from slurm_elastic.ckptman.sources import CloudNotices, DropDirectory
from slurm_elastic.cli.services.ckptman import JOIN_TIMEOUT_S
from slurm_elastic.cli.services.standby import Head
from slurm_elastic.config import Config, Timings
from slurm_elastic.config.pool_rules import fail_safe
from slurm_elastic.config.sections.checkpoint import LAUNCHED
from slurm_elastic.controller import daemon
from slurm_elastic.controller.context import Site
from slurm_elastic.controller.daemon import Daemon
from slurm_elastic.controller.launching import provision
from slurm_elastic.features.registry import FEATURES
from slurm_elastic.machine.programs import power
from slurm_elastic.model.cluster import Instance, InstanceState, Market
from slurm_elastic.model.slurm import SlurmJob, SlurmNode
from slurm_elastic.policies.nodes.node_state import Phase, phase
from slurm_elastic.slurm.client.fake_timed import PartitionTimes
from slurm_elastic.state.ckptstate import CheckpointState
from slurm_elastic.state.ledger import Ledger
from slurm_elastic.state.spool import Spool
from slurm_elastic.state.store import journal as store_journal
from tests.chaos import scheduler
from tests.chaos.books import Books
from tests.chaos.coverage import keys_set
from tests.chaos.disk import HeadDisk
from tests.chaos.drawn_site import calm, is_drawn
from tests.chaos.fakes import CHANGES, Account, Cloud, Saver, Slurm, is_up, runs
from tests.chaos.head_books import HOSTS, host_of
from tests.chaos.kept import ALL, Kept
from tests.chaos.lie_weather import RECORD, LieWeather
from tests.chaos.order_weather import OPERATOR, OrderWeather
from tests.chaos.pair import Pair, owner_on
from tests.chaos.scheduler import Event, Lock, Scheduler, Threading, Worker
from tests.chaos.sites import (
    CKPTMAN,
    DAEMON,
    DRAWN,
    TIMINGS,
    drawn_site,
    keeping,
    site_of,
    two_heads,
)
from tests.chaos.sqlite import Sqlite
from tests.controller.world import BOOT, PING, SLURMD_TIMEOUT, T0, Killed

STEP = 5.0
"""Seconds between two looks at what machines and jobs do by themselves."""
SHORT = 60.0
"""Seconds that no job needs more than once nothing new comes."""


class Stage:
    """``note`` keeps the trace, ``struck`` counts what went wrong by kind, ``skew`` (s) is how
    wrong the head's clock is, ``losing`` how many of slurmctld's requests to come are lost, by
    kind, ``kept`` whether its pools kept stopped machines at first, ``unheard`` has the machines whose
    slurmd slurmctld does not hear, ``lies`` is set where the world lies. Everything else is as in
    tests.controller.world.
    """

    def __init__(
        self, seed: int, *, keep: bool = False, kind: str | None = None, heads: bool | None = None,
        kept: Kept = ALL,
    ) -> None:  # fmt: skip
        self.seed, self.kept_parts = seed, kept
        self.rng = random.Random(seed)
        self.trace: list[str] | None = [] if keep else None
        self._notes: list[str] = []
        self.struck: Counter[str] = Counter()
        self.sched = Scheduler(self.rng, self.rng.choice((0.02, 0.1, 0.3)), self.note)
        scheduler.use(self.sched)
        modules.put()
        self.files = modules.sqlite.use(self.sched)
        modules.stage = self
        self.skew = 0.0
        self.skews = [0.0]
        fast = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self._place = tempfile.mkdtemp(prefix="se-chaos-", dir=fast)
        self.disk = HeadDisk(Path(self._place))
        kind = kind or (DRAWN if is_drawn(seed) else None)
        if kind == DRAWN:
            site = drawn_site(seed, self.disk.root, kept.steps)
        else:
            site = site_of(self.rng, self.disk.root, kind)
        self.kind, self.config, self.nodes = site
        self.features = keys_set(self.config)
        self.pair = None
        # Of a chance of its own: sites of one head are what they were.
        if two_heads(seed) if heads is None else heads:
            self.pair = Pair(self, self.disk.root.parents[1], random.Random(f"{seed} heads"))
            self.config = self.pair.config(self.config, self.pair.acting)
        self.forgotten: dict[str, float] = {}
        self.kept = self.keeps
        self.lingers = self.rng.choice((0.0, 0.1, 0.5))
        self.calm = False
        self.wakes = (1.0, 9.0)
        self._armed: dict[str, str] = {}
        self._begun: set[str] = set()
        self._outdated: set[str] = set()
        environ = SimpleNamespace(get=self._fault_at)
        faults.os = SimpleNamespace(environ=environ)  # type: ignore[assignment]
        faults.signal = SimpleNamespace(  # type: ignore[assignment]
            SIGKILL=signal.SIGKILL, raise_signal=self._die
        )
        self.books = Books(self)
        self.log = _Log(self)
        self.requests: list[tuple[str, Sequence[str], Mapping[int, Sequence[str]]]] = []
        self.losing: Counter[str] = Counter()
        self._received = itertools.count()
        self.since: dict[str, float] = {}
        self._silent: dict[str, float] = {}
        self.unlucky: set[str] = set()
        self.unheard: set[str] = set()
        self.lies: LieWeather | None = None
        self.anew_at = float("-inf")
        self.orders: OrderWeather | None = None
        self._stops: dict[str, Event] = {}
        self.lengths: dict[int, float] = {}
        self._running: dict[tuple[int, int], float] = {}
        self.ledger: Ledger | None = None
        self.service: Service | None = None
        self._build()

    def _build(self) -> None:
        timings = self.config.timings
        self.slurm = Slurm(
            list(self.nodes), self.now, self.program, suspend_time=timings.suspend_time,
            suspend_timeout=timings.suspend_timeout, resume_timeout=timings.resume_timeout,
        )  # fmt: skip
        self.slurm.stage = self
        self.slurm.timeout = SLURMD_TIMEOUT
        for name, cloud in self.nodes.items():
            self.since[name] = 0.0
            self.slurm.set_node(name, partitions=(self.config.cloud(cloud).partition_name,))
        self._set_times()
        sched = self.sched
        self.accounts = {
            c.name: Account(self.books.made, lambda: sched.now) for c in self.config.clouds
        }
        self.clouds = {
            c.name: Cloud(
                self,
                c,
                self.config.cluster,
                self.accounts[c.name],
                self.true_time,
                self.sched.sleep,
            )
            for c in self.config.clouds
        }
        for name, account in self.accounts.items():
            theirs = Instance(
                id=f"{name}-theirs", cloud=name, node=min(self.nodes), generation="g0",
                instance_type="small", zone="zone-1", market=Market.SPOT, price=0.03,
                state=InstanceState.RUNNING, launched=T0,
            )  # fmt: skip
            account.add_foreign(theirs, owner="somebody-else")
        self.saver = Saver(self.now, self.sched.sleep, seconds=2.0)
        self.saver.stage = self
        if self.pair is None:
            Spool(self.disk.root).create()
        for owner in self.owners:
            self.start(owner)

    def _set_times(self) -> None:
        """As the partitions' lines in slurm.conf."""
        if self.kind != DRAWN:
            return
        for cloud in self.config.clouds:
            names = [name for name, of in self.nodes.items() if of == cloud.name]
            times = PartitionTimes(
                fail_safe(self.config, cloud), self.config.suspend_timeout(cloud),
                self.config.resume_timeout(cloud),
            )  # fmt: skip
            self.slurm.set_times(names, times)

    # clocks, the trace, and where threads give way

    def now(self) -> float:
        """The head's clock."""
        return T0 + self.sched.now + self.skew

    def true_time(self) -> float:
        """Everybody else's."""
        return T0 + self.sched.now

    def note(self, what: str) -> None:
        if self.trace is not None:
            self.trace.append(what)
        self._notes.append(what)

    def note_alike(self, what: str) -> None:
        """As ``note``, of words that may name a file: its directory has another name each time."""
        self.note(what.replace(self._place, ""))

    @property
    def digest(self) -> str:
        return hashlib.sha256("".join(self._notes).encode()).hexdigest()

    def linger(self, seconds: float) -> None:
        """A call that takes its time."""
        if seconds or (self.lingers and self.rng.random() < self.lingers and not self.calm):
            self.sched.sleep(seconds + self.rng.choice((0.0, 0.2, 3.0)))
        else:
            self.sched.pause()

    def linger_undecided(self, point: str) -> None:
        """As ``reach``; a purchase that was found within its limits takes its time until it is
        written down, so that other clouds decide meanwhile where nothing keeps them from it.
        """
        if point == "launch.before-intent" and not self.calm and self.rng.random() < 0.5:
            self.sched.sleep(self.rng.choice((0.2, 3.0)))
        faults.reach(point)

    def be_calm(self) -> None:
        """Nothing new comes: all that takes time and no turns of others may be done in fewer."""
        self.calm, self.wakes = True, (25.0, 35.0)
        self.lengths = {job: min(length, SHORT) for job, length in self.lengths.items()}
        if self.kind == DRAWN:
            self.note("the calm configuration")
            self._reconfigure(calm(self.config, Timings(**TIMINGS)), (DAEMON, CKPTMAN))  # type: ignore[arg-type]

    # the services

    @property
    def owners(self) -> tuple[str, ...]:
        """Whose threads are there: both services of each head."""
        hosts = HOSTS if self.pair is not None else HOSTS[:1]
        return tuple(owner_on(program, host) for host in hosts for program in (DAEMON, CKPTMAN))

    def acting(self, program: str) -> str:
        """The service of that head that acts by Slurm."""
        return program if self.pair is None else owner_on(program, self.pair.acting)

    def may_start(self, owner: str) -> bool:
        return self.pair is None or host_of(owner) in self.pair.up

    def start(self, owner: str) -> None:
        if not self.sched.lives(owner) and self.may_start(owner):
            self._begun.add(owner)
            serve = self._daemon if owner.startswith(DAEMON) else self._ckptman
            self.sched.spawn(owner, owner, lambda: self._serve(owner, serve))

    def _serve(self, owner: str, serve: Callable[[Config, Head | None], bool]) -> None:
        """As ``_serve`` of both programs; what passes by itself is tried again."""
        if self.pair is None:
            serve(self.config, None)
            return
        config, ended = self.pair.config(self.config, host_of(owner)), Event()
        try:
            head = self.pair.head(owner, config)
        except SlurmElasticError as error:
            self.note(f"{owner} does not start: {type(error).__name__}")
            return
        while head.begins(ended):  # type: ignore[arg-type]
            self.pair.books.serves(owner)
            config = self.pair.config(self.config, host_of(owner))
            if not serve(config, head):
                return

    def acts(self, host: str) -> None:
        """Another head does from now on; what the one before only had in memory is lost."""
        self.books.forgot(self.ledger)
        self.ledger = self.service = None
        assert self.pair is not None
        self.config = self.pair.config(self.config, host)

    def _judged(
        self, ledger: Ledger, judge: Callable[[Callable[..., Any]], Any], real: Callable[..., Any]
    ) -> Callable[..., Any]:
        """What a head decides that acts no more comes to nothing: see ``pair.EpochBooks``."""
        judged = judge(real)
        return lambda *args: (judged if self.ledger is ledger else real)(*args)

    def _daemon(self, config: Config, head: Head | None) -> bool:
        """As cli/services/daemon.py; False where it cannot serve."""
        with contextlib.ExitStack() as closing:
            return self._daemon_as(config, head, closing)

    def _daemon_as(self, config: Config, head: Head | None, closing: contextlib.ExitStack) -> bool:
        sched, stop = self.sched, Event()
        self._stops[sched.current.owner] = stop
        clouds: Mapping[str, Any] = self.clouds
        slurm: Any = self.slurm
        spool = Spool(config.state)
        if head is not None:
            clouds, slurm = head.fenced(clouds), head.fenced_slurm(slurm)
            closing.enter_context(head.watched(stop.set))
        try:
            spool.create()
            ledger = Ledger.enduring(config.state / "ledger.db", self.now, lambda: sched.now)
        except (OSError, SlurmElasticError) as error:
            self.note(f"elasticd does not start: {type(error).__name__}")
            return False
        site = replace(
            Site.of(config, slurm, ledger, clouds, self.now),
            monotonic=lambda: sched.now,
            wait=self._wait,
            **{name: Lock() for name in lock_names(Site)},
        )
        if head is not None:
            closing.callback(ledger.close)
            site = replace(site, repairs_allowed_from=sched.now + head.unsettled, epoch=head.epoch)
        if self.pair is None or self.pair.books.acts(sched.current.owner):
            self.ledger = ledger
        for part, name, judge in (
            (ledger.machines, "record_ending", self.books.watched),
            (ledger.launches, "record_intent", self.books.intended),
            (ledger.launches, "record_failure", self.books.given_up),
            (ledger.stops, "record_stopping", self.books.watched),
            (ledger.stops, "record_start", self.books.to_be_started),
            (ledger.stops, "record_start_refusal", self.books.refused),
        ):
            setattr(part, name, self._judged(ledger, judge, getattr(part, name)))
        Daemon(
            site, spool, _Bell(self), Worker,  # type: ignore[arg-type]
            features=FEATURES,
        ).run(stop)  # fmt: skip
        return True

    def _ckptman(self, config: Config, head: Head | None) -> bool:
        """As cli/services/ckptman.py; False where it cannot serve."""
        with contextlib.ExitStack() as closing:
            return self._ckptman_as(config, head, closing)

    def _ckptman_as(self, config: Config, head: Head | None, closing: contextlib.ExitStack) -> bool:
        sched = self.sched
        clouds: Mapping[str, Any] = self.clouds
        slurm: Any = self.slurm
        if head is not None:
            clouds, slurm = head.fenced(clouds), head.fenced_slurm(slurm)
        try:
            ledger = Ledger.followed(config.state / "ledger.db")
            state = CheckpointState.enduring(
                config.state / "checkpoints.db", self.now, lambda: sched.now
            )
            drop = DropDirectory(config.state / "notices", create=True)
        except (OSError, SlurmElasticError) as error:
            self.note(f"ckptman does not start: {type(error).__name__}")
            return False
        if head is not None:
            closing.callback(ledger.close)
            closing.callback(state.close)
        state.put = self.books.moving(state.put)  # type: ignore[method-assign]
        site = CkptSite(
            config=config, slurm=slurm, ledger=ledger, state=state,
            recorder=BufferedRecorder(ledger, state, self.now),
            jobs=JobList(slurm, lambda: sched.now),
            checkpointers=dict.fromkeys((*LAUNCHED, "signal", "fake"), self.saver),
            providers=clouds, pool_of=pools_by_node(config), now=self.now,
            monotonic=lambda: sched.now, stop=Event(),
        )  # fmt: skip
        service = Service(site, KeyedExecutor(2))
        self._stops[sched.current.owner] = site.stop  # type: ignore[assignment]
        if self.pair is None or self.pair.books.acts(sched.current.owner):
            self.service = service
        watch = service.reader.machines
        pollers = [
            Poller(site, source, 11.0, watch, service.wake, service.orders)
            for source in (*(CloudNotices(c) for c in clouds.values()), drop)
        ]
        if head is not None:
            closing.enter_context(head.watched(service.stop))
        for poller in pollers:
            poller.start()
        service.run()
        for poller in pollers if head is not None else ():
            poller.join(JOIN_TIMEOUT_S)
        return True

    def _wait(self, seconds: float) -> bool:
        self.sched.sleep(seconds)
        return False

    def kill(self, owner: str) -> None:
        """As kill -9."""
        self.note(f"kill {owner}")
        self._armed.pop(owner, None)
        self.sched.kill(owner)
        self.sched.reap(owner)
        self.bury(owner)

    def bury(self, owner: str) -> None:
        """The kernel closes its files."""
        self.files.close(owner)
        self._begun.discard(owner)
        if self.pair is not None and not self.pair.books.acts(owner):
            return
        if owner.startswith(DAEMON):
            self.books.forgot(self.ledger)
            self.ledger = None
        else:
            self.service = None

    def keep_stopped(self, most: Sequence[int]) -> None:
        """Each pool keeps so many stopped machines from now on: elasticd is restarted for it."""
        self.note(f"stopped: {most}")
        self._reconfigure(keeping(self.config, most), (DAEMON,))

    def _reconfigure(self, config: Config, programs: tuple[str, ...]) -> None:
        self.config = config
        self._set_times()
        self._have_restarted(programs)

    def _have_restarted(self, programs: tuple[str, ...]) -> None:
        """Restart the services for another configuration, those of a head that stands still once it
        is back.
        """
        lives = [o for o in self.owners if o.startswith(programs) and self.sched.lives(o)]
        self._outdated |= set(lives)
        self._restart_outdated()

    def _restart_outdated(self) -> None:
        for owner in self.owners if self._outdated else ():
            if owner not in self._outdated or not self.may_start(owner):
                continue
            self._outdated.discard(owner)
            if self.sched.lives(owner):
                self.kill(owner)
                self.start(owner)

    def restart_with(self, config: Config) -> None:
        """All services are restarted with that configuration."""
        self.note("another configuration")
        self.config = config
        self._have_restarted((DAEMON, CKPTMAN))

    def end_gently(self, owner: str) -> bool:
        """As SIGTERM does. Whether the service is there; of two heads they stand by afterwards."""
        if self.pair is not None or not self.sched.lives(owner) or owner not in self._stops:
            return False
        self.note(f"SIGTERM {owner}")
        self._stops[owner].set()
        return True

    def die_at(self, owner: str, point: str) -> None:
        self._armed[owner] = point

    def _fault_at(self, name: str) -> str | None:
        if name != "SLURM_ELASTIC_FAULT":
            return None
        self.sched.pause()
        return self._armed.get(self.sched.current.owner)

    def disarm(self, owner: str) -> None:
        self._armed.pop(owner, None)

    def _die(self, _signal: int) -> None:
        owner = self.sched.current.owner
        point = self._armed.pop(owner)
        if self.pair is not None and owner in self.pair.fates:
            self.note(f"{owner} is struck at {point}")
            if not self.pair.strikes(owner):
                self.sched.sleep(0.0)  # until it is woken
                return
        else:
            self.struck["killed at a fault point"] += 1
            self.note(f"{owner} dies at {point}")
            self.sched.kill(owner)
        raise Killed

    def power_cut(self) -> None:
        """The head node loses its power."""
        self.struck["power cut of the head"] += 1
        for owner in (DAEMON, CKPTMAN, OPERATOR):
            self._armed.pop(owner, None)
            self.sched.kill(owner)
            self.sched.reap(owner)
        # Before they are closed: sqlite would tidy up, which no power cut does.
        self.disk.cut(self.rng)
        for owner in (DAEMON, CKPTMAN):
            self.bury(owner)
        self.config = altered(self.config, state_dir=str(self.disk.root))

    def close(self) -> None:
        """Whatever the run came to."""
        for owner in (*self.owners, OPERATOR):
            self.sched.go_on(owner)
            self.sched.kill(owner)
        self.sched.turns = 0
        for owner in (*self.owners, OPERATOR):
            self.sched.reap(owner)
            self.files.close(owner)
        if self.pair is not None:
            self.pair.close()
        faults.os, faults.signal = os, signal  # type: ignore[attr-defined]
        self.disk.close()
        self.log.close()

    # Slurm's programs

    def program(self, kind: str, nodes: Sequence[str], jobs: Mapping[int, Sequence[str]]) -> None:
        """As programs/power.py does it: where the disk is full the request is lost."""
        self.requests.append((kind, tuple(nodes), dict(jobs)))
        state = self.disk.root
        if self.pair is not None:
            self.pair.books.asks(kind, nodes)
            state = self.pair.state(self.pair.acting)
        if self.losing[kind]:
            self.losing[kind] -= 1
            self.struck["request lost"] += 1
            return
        lines = ", ".join(f'{{"job_id": {j}, "nodes": "{compress(of)}"}}' for j, of in jobs.items())
        file = os.memfd_create("resume.json")  # of slurmctld's own disk
        os.write(file, f'{{"jobs": [{lines}], "all_nodes": "{compress(nodes)}"}}'.encode())
        os.environ["SLURM_RESUME_FILE"] = f"/proc/self/fd/{file}"
        try:
            power.store(str(state / "requests"), kind, compress(nodes))
        except OSError:
            self.struck["request lost"] += 1
        finally:
            os.close(file)

    def time_ns(self) -> int:
        return int(self.now() * 1e9) + next(self._received)

    # users

    def submit(
        self, job: int, among: Sequence[str], count: int, length: float, **fields: Any
    ) -> None:
        self.note(f"job {job} {count} of {among} for {length:.0f} s")
        self.lengths[job] = length
        self.books.submitted(job)
        partition = self.config.cloud(self.nodes[among[0]]).partition_name
        if self.orders is not None and self.kind != DRAWN:
            among = tuple(self.nodes)  # it may be sent to the partition of another cloud
        asked = {"partitions": (partition,), "node_count": count, **fields}
        self.slurm.submit(job, among, count, **asked)

    def release_held(self) -> None:
        """Somebody releases the jobs that had too little room by an earlier configuration."""
        for job in self.slurm.queue().values():
            if job.reason in ("JobHeldUser", "JobHeldAdmin"):
                self.struck["orders: a held job is released"] += 1
                self.slurm.release(job.id)

    def died(self, job: SlurmJob) -> None:
        """A job that must not be requeued ends with its node."""
        self.books.died(job)

    # time

    def advance(self, seconds: float, step: float = STEP) -> None:
        end = self.sched.now + seconds
        while self.sched.now < end:
            self.sched.sleep(min(step, end - self.sched.now))
            self.live()
            self.bury_dead()
            self._restart_outdated()

    def bury_dead(self) -> None:
        """Bury the services that died by themselves, at a fault point."""
        alive = {task.owner for task in self.sched.tasks}
        for owner in sorted(self._begun - alive):
            self.bury(owner)

    def live(self) -> None:
        """Let slurmctld, machines and jobs do what they do by themselves."""
        if self.slurm.trouble not in ("stopped", "hung"):
            self.slurm.step()
        by_node: dict[str, list[Instance]] = {}
        for i in self.running():
            by_node.setdefault(i.node, []).append(i)
        for name in self.nodes:
            self._live(name, by_node.get(name, []))
        self._work()
        if self.pair is not None:
            self.pair.live()
        self.books.look()

    def _live(self, name: str, machines: Sequence[Instance]) -> None:
        slurm, now = self.slurm, self.sched.now
        node = slurm.node(name)
        if phase(node) is Phase.POWERING_UP and slurm.trouble not in ("stopped", "hung"):
            for i in machines:
                # Times of Unix are rounded to a quarter of a microsecond, and a machine may be
                # launched in the moment in which it is asked for.
                launched = i.launched - T0 + 1e-6
                lucky = i.id not in self.unlucky | self.unheard
                if launched >= self.asked(name) and now - launched >= BOOT and lucky:
                    slurm.register(name, i.address or "")
                    self.note(f"{i.id} registers as {name}")
        node = slurm.node(name)
        served = any(i.address == node.address and i.id not in self.unheard for i in machines)
        if not is_up(node) or served:
            self._silent.pop(name, None)
            slurm.hear(name)
            return
        if slurm.trouble in ("stopped", "hung"):
            return
        gone = now - self._silent.setdefault(name, now)
        if gone >= SLURMD_TIMEOUT:
            slurm.lose(name)
        elif gone >= PING:
            slurm.miss(name)

    def _work(self) -> None:
        """Jobs run as long as they need; from an image on only what was left then."""
        for job in list(self.slurm.queue().values()):
            if "RUNNING" not in job.states:
                continue
            begun = self._running.setdefault((job.id, job.restarts), self.sched.now)
            length = self.lengths[job.array or job.id]
            late = job.ends_at_latest is not None and self.now() >= job.ends_at_latest
            if late or self.sched.now - begun >= length:
                self.note(f"job {job.id} {'times out' if late else 'completes'}")
                self.books.completed.add(job.id)
                self.slurm.finish(job.id)

    def forget_runs(self) -> None:
        """What ran is gone with slurmctld's state."""
        self.anew_at = self.sched.now
        self._running.clear()
        self.requests.clear()

    # what is there

    def alive(self) -> list[Instance]:
        """Our machines, whether their clouds show them or not."""
        return [
            m.instance
            for account in self.accounts.values()
            for m in account.machines.values()
            if m.owner == self.config.cluster.uuid
            and m.instance.state is not InstanceState.TERMINATED
        ]

    def running(self) -> list[Instance]:
        return [i for i in self.alive() if runs(i)]

    def machines_of(self, node: str) -> list[Instance]:
        """The node's machines that run."""
        return [i for i in self.running() if i.node == node]

    def stopped(self) -> list[Instance]:
        return [i for i in self.alive() if not runs(i)]

    @property
    def keeps(self) -> bool:
        """Whether any of its pools keeps stopped machines."""
        return any(pool.max_stopped for pool in self.config.pools)

    def asked(self, node: str) -> float:
        """Since when (s of the run) the node is in its phase: of one whose power-up Slurm has
        forgotten, and asked for again, the first time.
        """
        return self.forgotten.get(node, self.since[node])

    def judge_update(self, node: SlurmNode, state: str) -> None:
        self.books.judge_update(node, state)

    # what two heads do

    def sent(self, cloud: str, call: str) -> None:
        """A call is on its way to that cloud."""
        self.sched.current.sent = True
        if self.pair is not None:
            self.pair.books.called(cloud, call)

    def ends(self, machines: Sequence[Instance]) -> None:
        if self.pair is not None:
            for one in machines:
                self.pair.books.ends(one)

    def tells_slurm(self, command: str) -> None:
        if (
            self.pair is not None
            and command in CHANGES
            and not self.pair.books.acts(self.sched.current.owner)
        ):
            text = f"{self.sched.current.owner} acts no more, and has Slurm do {command}"
            self.books.wrong("fence", text)


def lock_names(of: type[Any]) -> set[str]:
    """The locks of a dataclass. Their defaults are real ones: a thread that waits for one stops the
    run, because the thread that holds it gets no turn.
    """
    return {one.name for one in fields(of) if one.type == "threading.Lock"}


class _Bell:
    """In place of the wake socket; the loop of a busy head takes its time."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._event = Event()

    def ring(self) -> None:
        self._event.set()

    def wait(self, timeout: float) -> list[bytes]:
        self._event.wait(max(timeout, self._stage.rng.uniform(*self._stage.wakes)))
        self._event.clear()
        return []


class _Log(logging.Handler):
    """An error that no code of ours foresaw is a defect, whatever else comes of the run."""

    def __init__(self, stage: Stage) -> None:
        super().__init__(logging.WARNING)
        self._stage = stage
        self._log = logging.getLogger("slurm_elastic")
        self._log.handlers = [self]
        self._log.propagate = False

    def emit(self, record: logging.LogRecord) -> None:
        if self._stage.trace is not None:
            self._stage.trace.append(f"log {record.getMessage()}")
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            self._stage.books.wrong("unforeseen", f"{record.getMessage()}: {error!r}")

    def close(self) -> None:
        self._log.handlers = []
        super().close()


class _Clock(ModuleType):
    """In place of ``time`` in the product's modules."""

    def __init__(self) -> None:
        super().__init__("time")

    def time(self) -> float:
        return modules.stage.now()

    def time_ns(self) -> int:
        return modules.stage.time_ns()

    def monotonic(self) -> float:
        return modules.stage.sched.now

    def sleep(self, seconds: float) -> None:
        modules.stage.sched.sleep(seconds)

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


class _Modules:
    """Stand-ins for what the product's modules import; put there once, for this process.

    The first stage puts them there, and not this module: a test that imports it goes on in a
    process where clocks and locks are real.
    """

    stage: Stage

    def __init__(self) -> None:
        self.sqlite = Sqlite()
        self._are_put = False

    def put(self) -> None:
        if self._are_put:
            return
        self._are_put = True
        secrets = SimpleNamespace(token_hex=lambda n: self.stage.rng.randbytes(n).hex())
        chance = SimpleNamespace(
            uniform=lambda a, b: self.stage.rng.uniform(a, b),
            random=lambda: self.stage.rng.random(),
        )
        stand_ins = {
            "threading": Threading(), "time": _Clock(), "secrets": secrets, "random": chance,
        }  # fmt: skip
        for name, module in list(sys.modules.items()):
            if name.startswith("slurm_elastic"):
                for attribute, instead in stand_ins.items():
                    if isinstance(getattr(module, attribute, None), ModuleType):
                        setattr(module, attribute, instead)
        for name in ("state.store.view",):
            sys.modules[f"slurm_elastic.{name}"].sqlite3 = self.sqlite  # type: ignore[attr-defined]
        begin = store_journal.Journal.__init__

        def begun(journal: store_journal.Journal, *of: Any) -> None:
            begin(journal, *of)
            self.sqlite.own(journal)

        store_journal.Journal.__init__ = begun  # type: ignore[method-assign]
        self._have_lines_noted()
        provision.reach = lambda point: self.stage.linger_undecided(point)
        # A busy head; and fewer turns for a run.
        ckptman_service.MOVING_PAUSE_S, ckptman_service.HEARTBEAT_EVERY_S = 5.0, 15.0
        daemon.BEAT_EVERY_S = 15.0

    def _have_lines_noted(self) -> None:
        """Each line of a journal is a place where its service may die, and two heads are judged."""
        append = store_journal.Journal.append

        def appended(journal: store_journal.Journal, *of: Any) -> store_journal.Position:
            if self.stage.lies is not None:
                self.stage.lies.at(RECORD, answered=False)
            end = append(journal, *of)
            if self.stage.lies is not None:
                self.stage.lies.at(RECORD, answered=True)
            if self.stage.pair is not None:
                self.stage.pair.books.written(journal.name)
            return end

        store_journal.Journal.append = appended  # type: ignore[method-assign]


modules = _Modules()
