"""A real site of one seed, for the weather, the orders and the oracle of ``tests.chaos``: the services are
processes, Slurm is slurmctld, machines are slurmds, and time is that of the wall.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from msgspec.structs import replace as altered

from slurm_elastic.base.errors import SandboxError, SlurmElasticError
from slurm_elastic.config import Config
from slurm_elastic.config.sections.access import Who
from slurm_elastic.model.cluster import Instance, InstanceState, Market
from slurm_elastic.policies.nodes.node_state import Phase, phase
from slurm_elastic.sandbox.build import USER
from tests.chaos.coverage import keys_set
from tests.chaos.drawn_site import calm
from tests.chaos.fakes import Account, Cloud, runs
from tests.chaos.kept import ALL, Kept
from tests.chaos.sites import CKPTMAN, DAEMON, DRAWN, cloud_of_nodes
from tests.controller.world import T0
from tests.real.books import RealBooks
from tests.real.cloud import CloudServer
from tests.real.compared import have_compared
from tests.real.service import DIFFERENCES, Forked, Forks, Start
from tests.real.site import DIR, GROUPS, DrawnSite, calm_timings, config_of
from tests.real.slurm import UsersSlurm

SPEED = 10.0
"""Seconds of a drawn run for a second of the wall."""
BOOT_S = 1.5
LOOK_S = 0.4
STOP_S = 20.0
SHORTEST_JOB_S, LONGEST_JOB_S = 1.0, 12.0


class WallClock:
    """As ``tests.chaos.scheduler.Scheduler`` for those who look on: ``now`` (s) counts from T0, and
    ``current`` is the caller whose call is answered in this thread.
    """

    def __init__(self) -> None:
        self.errors: list[Any] = []
        self.turns = 0
        self._threads = threading.local()
        self.lives: Callable[[str], bool] = lambda _owner: False

    @property
    def now(self) -> float:
        return time.time() - T0

    @property
    def current(self) -> Any:
        if not hasattr(self._threads, "task"):
            self._threads.task = SimpleNamespace(owner="world", sent=False, read_nodes={})
        return self._threads.task

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def pause(self) -> None:
        """Nobody waits for a turn here."""


class RealStage:
    """What ``tests.chaos.stage.Stage`` is to the weather and the books."""

    kind = DRAWN
    pair = None
    lies = None
    orders: Any = None
    skews = (0.0,)
    ledger = service = None
    has_begun = False

    def __init__(self, seed: int) -> None:
        self._forks = Forks()
        self.seed = seed
        self.rng = random.Random(seed)
        self.kept_parts: Kept = ALL
        self.struck: Counter[str] = Counter()
        self.trace: list[str] = []
        self._lock = threading.RLock()
        self._began = time.monotonic()
        self._hash = hashlib.sha256()
        self.sched = WallClock()
        self.sched.lives = self.lives
        self.config: Config = config_of(seed)
        self.nodes: Mapping[str, str] = cloud_of_nodes(self.config)
        self.features = keys_set(self.config)
        self.site = DrawnSite(self.config)
        self.books = RealBooks(self)  # type: ignore[arg-type]
        self.since = dict.fromkeys(self.nodes, self.sched.now)
        self._phases: dict[str, Phase] = {}
        self._states: dict[str, frozenset[str]] = {}
        self.unlucky: set[str] = set()
        self.unheard: set[str] = set()
        self.calm = False
        self._fault: dict[str, str] = {}
        self._processes: dict[str, Forked] = {}
        self.lengths: dict[int, float] = {}
        self.saver = SimpleNamespace(_images={}, spoils=0)
        self._make_clouds()

    def _make_clouds(self) -> None:
        self.accounts = {
            c.name: Account(self.books.made, lambda: self.sched.now) for c in self.config.clouds
        }
        cluster = self.config.cluster
        self.clouds = {
            c.name: Cloud(
                self, c, cluster, self.accounts[c.name], time.time, time.sleep  # type: ignore[arg-type]
            )
            for c in self.config.clouds
        }  # fmt: skip
        for name, account in self.accounts.items():
            theirs = Instance(
                id=f"{name}-theirs", cloud=name, node=min(self.nodes), generation="g0",
                instance_type="small", zone="zone-1", market=Market.SPOT, price=0.03,
                state=InstanceState.RUNNING, launched=time.time(),
            )  # fmt: skip
            account.add_foreign(theirs, owner="somebody-else")

    def begin(self) -> None:
        """Start all daemons."""
        self.site.begin()
        self.note("slurmctld answers")
        self.has_begun = True
        DIFFERENCES.mkdir(mode=0o777)
        DIFFERENCES.chmod(0o1777)
        have_compared(DIFFERENCES, "users")
        self.slurm = UsersSlurm(self, str(self.site.layout.slurm_conf))
        self._server = CloudServer(DIR / "run" / "clouds", self._called)
        for owner in self.owners:
            self.start(owner)
        self.site.wait_for(self._serves, 60.0, "slurm-elasticd listens")

    def _serves(self) -> bool:
        return (self.config.state / "prolog.sock").exists()

    # clocks and the trace

    def now(self) -> float:
        return time.time()

    true_time = now

    def note(self, what: str) -> None:
        self.trace.append(f"{time.monotonic() - self._began:7.2f} {what}")

    note_alike = note

    def linger(self, seconds: float) -> None:
        if seconds:
            time.sleep(seconds / SPEED)

    def sent(self, _cloud: str, _call: str) -> None:
        """Nobody judges two heads here."""

    def ends(self, machines: Sequence[Instance]) -> None:
        for one in machines:
            self.books.ends(one)

    # the clouds

    def _called(self, caller: str, cloud: str, call: str, values: Sequence[Any]) -> Any:
        self.sched.current.owner = caller
        return getattr(self.clouds[cloud], call)(*values)

    def alive(self) -> list[Instance]:
        """Our machines, whether their clouds show them or not."""
        return [
            m.instance
            for account in self.accounts.values()
            for m in list(account.machines.values())
            if m.owner == self.config.cluster.uuid
            and m.instance.state is not InstanceState.TERMINATED
        ]

    def running(self) -> list[Instance]:
        return [i for i in self.alive() if runs(i)]

    def machines_of(self, node: str) -> list[Instance]:
        return [i for i in self.running() if i.node == node]

    def stopped(self) -> list[Instance]:
        return [i for i in self.alive() if not runs(i)]

    @property
    def keeps(self) -> bool:
        return any(pool.max_stopped for pool in self.config.pools)

    def asked(self, node: str) -> float:
        return self.since[node]

    # the services

    @property
    def owners(self) -> tuple[str, ...]:
        return DAEMON, CKPTMAN

    def acting(self, program: str) -> str:
        return program

    def may_start(self, _owner: str) -> bool:
        return True

    def lives(self, owner: str) -> bool:
        process = self._processes.get(owner)
        return process is not None and process.is_alive()

    def start(self, owner: str) -> None:
        if self.lives(owner):
            return
        fault = self._fault.pop(owner, "")
        environment = dict(self.site.environment())
        if fault:
            environment["SLURM_ELASTIC_FAULT"] = fault
        argv = ("--config", str(self.site.layout.config))
        self.note(f"{owner} starts{f', to die at {fault}' if fault else ''}")
        self._processes[owner] = self._forks.start(self._start_of(owner, argv, environment, USER))

    def _start_of(
        self, name: str, argv: Sequence[str], environment: Mapping[str, str], user: str
    ) -> Start:
        log = str(self.site.layout.log / f"{name}.out")
        return Start(name, argv, environment, str(DIR / "run" / "clouds"), log, user)

    def die_at(self, owner: str, point: str) -> None:
        """It dies at that point of its next life."""
        self._fault[owner] = point
        self.kill(owner)

    def kill(self, owner: str) -> None:
        if self.lives(owner):
            self.note(f"kill {owner}")
            self._processes[owner].send(signal.SIGKILL)
            self._processes[owner].join(STOP_S)

    def end_gently(self, owner: str) -> bool:
        """As SIGTERM does."""
        if not self.lives(owner):
            return False
        self.note(f"SIGTERM {owner}")
        self._processes[owner].send(signal.SIGTERM)
        return True

    def _end(self, owner: str) -> None:
        if self.end_gently(owner) and not self._processes[owner].join(STOP_S):
            self.books.wrong("stuck", f"{owner} does not end at SIGTERM")
            self.kill(owner)

    def restart_with(self, config: Config) -> None:
        """As an admin does who has changed what slurm.conf need not know."""
        self.note("another configuration")
        self._configure(config, self.site.reload)

    def be_calm(self) -> None:
        """Nothing new comes, and nothing keeps a job waiting."""
        self.calm = True
        self.note("the calm configuration")
        config = altered(calm(self.config, calm_timings()), allow=Who(groups=GROUPS))
        pools = tuple(altered(p, slurmd_port=q.slurmd_port) for p, q in zip(
            config.pools, self.config.pools, strict=True
        ))  # fmt: skip
        self._configure(altered(config, pools=pools), self.site.configure)

    def _configure(self, config: Config, configure: Callable[[Config], None]) -> None:
        for owner in self.owners:
            self._end(owner)
        self.config = config
        configure(config)
        for owner in self.owners:
            self.start(owner)

    def command(self, *words: str) -> str:
        """What ``slurm-elastic WORDS`` prints, as root. SlurmElasticError if it fails."""
        environment = {**self.site.env(), "COLUMNS": "200"}
        begin = self._start_of("command", words, environment, "root")
        log = self.site.layout.log / "command.out"
        log.unlink(missing_ok=True)
        process = self._forks.start(begin)
        if not process.join(60.0):
            process.send(signal.SIGKILL)
            self.books.wrong("stuck", f"slurm-elastic {' '.join(words)} does not end")
        text = log.read_text()
        if process.exit_code:
            raise SlurmElasticError(text.strip() or f"exit {process.exit_code} and no word")
        return text

    # Slurm

    @contextlib.contextmanager
    def slurmctld_hangs(self) -> Iterator[None]:
        pid = self.site.slurmctld_pid
        os.kill(pid, signal.SIGSTOP)
        yield
        os.kill(pid, signal.SIGCONT)

    # users

    def submit(
        self, job: int, among: Sequence[str], count: int, length: float, **fields: Any
    ) -> None:
        seconds = min(max(length / SPEED, SHORTEST_JOB_S), LONGEST_JOB_S)
        if fields.get("start"):
            fields["start"] = self.now() + (fields["start"] - self.now()) / SPEED
        partition = self.config.cloud(self.nodes[among[0]]).partition_name
        asked = {
            "partitions": (partition,), "user": "alice", "account": "physics", "requeue": True,
            **fields,
        }  # fmt: skip
        try:
            number = self.slurm.submit(job, among, count, seconds, **asked)
        except SandboxError as error:
            self.struck["job: refused by sbatch"] += 1
            self.note(f"refused: {asked}: {error}")
            return
        self.note(f"job {number} {count} of {among} for {seconds:.0f} s {asked}")
        self.books.submitted(number)

    def release_held(self) -> None:
        self.slurm.let_go()

    # time

    def advance(self, seconds: float, step: float = LOOK_S) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.live()
            time.sleep(max(min(step, end - time.monotonic()), 0.0))

    def live(self) -> None:
        """Machines boot and end, and the books are looked at."""
        self._run_machines()
        self.slurm.look()
        for name in self.nodes:
            node = self.slurm.node(name)
            if self._states.get(name) != node.states:
                self._states[name] = node.states
                self.note(f"{name} is {' '.join(sorted(node.states))} {node.reason}")
            if self._phases.get(name) is not phase(node):
                self._phases[name], self.since[name] = phase(node), self.sched.now
        self.books.look()

    def _run_machines(self) -> None:
        machines = self.site.machines
        there = {i.id: i for i in self.running()}
        started = set(machines.ids())
        for id_ in sorted(started - there.keys()):
            self.note(f"{id_} is off")
            machines.power_off(id_)
        taken = {there[id_].node for id_ in started & there.keys()}
        for id_, one in sorted(there.items()):
            is_due = self.now() - one.launched >= BOOT_S and id_ not in self.unlucky
            # A second machine of the node would have its slurmd's port.
            if id_ not in started and is_due and one.node not in taken:
                self.note(f"{id_} boots as {one.node}")
                machines.start(self.site.layout.machine(id_, one.node))
                taken.add(one.node)

    def look_at_ended(self) -> None:
        with contextlib.suppress(SlurmElasticError):
            self.books.look_at_ended(self.slurm.jobs(ended=True))

    def differences(self) -> Counter[str]:
        """How often the fake of Slurm differed, by words."""
        # A site that did not come up has no such directory.
        lines = (path.read_text().splitlines() for path in DIFFERENCES.glob("*"))
        return Counter(itertools.chain.from_iterable(lines))

    def close(self) -> None:
        for owner in self.owners:
            self._end(owner)
