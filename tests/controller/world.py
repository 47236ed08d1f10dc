"""A whole site in memory: a real daemon over fakes, on a clock that only tests move."""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from slurm_elastic.base.hostlist import compress
from slurm_elastic.config import Cluster, Config, PoolSettings, Timings
from slurm_elastic.config.clouds import InstanceType
from slurm_elastic.config.sections.access import Who
from slurm_elastic.controller.context import Site
from slurm_elastic.controller.daemon import Daemon
from slurm_elastic.features.registry import FEATURES
from slurm_elastic.model.cluster import Instance, InstanceState, Limits, Location, Market
from slurm_elastic.model.journal_owner import Host
from slurm_elastic.policies.nodes.node_state import Phase, phase
from slurm_elastic.providers.fake.provider import FakeAccount, FakeProvider
from slurm_elastic.providers.fake.settings import FakeCloud
from slurm_elastic.state.ledger import Ledger
from slurm_elastic.state.spool import Spool
from slurm_elastic.testing.in_memory import Inline, Silent, leave_request
from tests.controller.slurmctld import Slurmctld

T0 = 1_800_000_000.0
BOOT = 10.0
SLURMD_TIMEOUT = 60.0
PING = SLURMD_TIMEOUT / 3
"""Seconds until slurmctld notes that a node does not answer."""
SHAPE = {"small": InstanceType(cpus=2, memory=4096, price=0.10)}
ONP = ("op1", "op2")
PUB = ("pub1", "pub2", "pub3")


class Killed(BaseException):
    """In place of SIGKILL."""


def make_config(state_dir: Path, **changes: Any) -> Config:
    fields: dict[str, Any] = {
        "cluster": Cluster(name="alps", uuid="uuid-1"),
        "clouds": (
            FakeCloud(name="onp", location=Location.ON_PREMISES, types=SHAPE, stock=None),
            FakeCloud(
                name="pub",
                location=Location.PUBLIC,
                types=SHAPE,
                limits=Limits(dollars_per_hour=0.25),
            ),
        ),
        "pools": (
            PoolSettings(name="rack", cloud="onp", nodes=compress(ONP), cpus=2, memory=4096),
            PoolSettings(
                name="burst",
                cloud="pub",
                nodes=compress(PUB),
                cpus=2,
                memory=4096,
                markets=(Market.SPOT, Market.ON_DEMAND),
            ),
        ),
        "state_dir": str(state_dir),
        "allow": Who(accounts=("physics",)),
        "limits": Limits(nodes=4),
        "timings": Timings(suspend_time=300, suspend_timeout=30, resume_timeout=600),
    }
    return Config(**(fields | changes))


def many_clouds(clouds: int) -> dict[str, Any]:
    """Configuration: the public cloud and its pool that often, each with nodes of its own."""
    plain: Config = make_config(Path("/nowhere"))
    cloud, pool = plain.clouds[1], plain.pools[1]
    return {
        "clouds": tuple(msgspec.structs.replace(cloud, name=f"c{i}") for i in range(clouds)),
        "pools": tuple(
            msgspec.structs.replace(
                pool, name=f"p{i}", cloud=f"c{i}", nodes=compress([f"n{i}x1", f"n{i}x2"])
            )
            for i in range(clouds)
        ),
    }


class World:
    """``daemon`` is None while none runs; what it leaves behind stays in ``dir`` and ``accounts``.

    ``programs`` is what slurmctld calls for its nodes. While ``hears`` is false slurmctld learns nothing
    of any slurmd, neither that it has booted nor that it is gone; nor, ever, of those on ``unheard``.
    """

    host: Host | None = None
    """The host that the services find themselves on; None: they do not look."""

    def __init__(self, directory: Path | None = None, **config: Any) -> None:
        fast = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self._own = directory is None
        self.dir = directory or Path(tempfile.mkdtemp(prefix="se-world-", dir=fast))
        self.now, self.repairs_allowed_from = T0, 0.0
        self.config = make_config(self.dir, **config)
        self.requests: list[tuple[str, Sequence[str], Mapping[int, Sequence[str]]]] = []
        self._numbers = itertools.count(1)
        self.programs: Callable[..., object] = self.program
        self.spool = Spool(self.dir)
        self.spool.create()
        names = [n for pool in self.pools().values() for n in pool]
        timings = self.config.timings
        self.slurm = self.make_slurm(
            names, lambda: self.now, lambda *of: self.programs(*of), suspend_time=timings.suspend_time,
            suspend_timeout=timings.suspend_timeout, resume_timeout=timings.resume_timeout,
        )  # fmt: skip
        self.accounts = {c.name: FakeAccount() for c in self.config.clouds}
        self.clouds: dict[str, FakeProvider] = {}
        self._gone_since: dict[str, float] = {}
        self._thread, self._closed = threading.get_ident(), threading.Event()
        self.daemon: Daemon | None = None
        self.slurmd_timeout = SLURMD_TIMEOUT
        self.hears, self.unheard = True, set[str]()
        self.really_running: set[str] = set()
        self.start()

    def pools(self) -> Mapping[str, Sequence[str]]:
        from slurm_elastic.base.hostlist import expand

        return {pool.name: expand(pool.nodes) for pool in self.config.pools}

    # the daemon

    def make_slurm(self, *args: Any, **settings: Any) -> Slurmctld:
        return Slurmctld(*args, **settings)

    def make_ledger(self) -> Ledger:
        return Ledger(self.dir / "ledger.db")

    def start(self) -> None:
        self.ledger = self.make_ledger()
        for cloud in self.config.clouds:
            assert isinstance(cloud, FakeCloud)
            old = self.clouds.get(cloud.name)
            new = FakeProvider(
                cloud, self.config.cluster, self.accounts[cloud.name], lambda: self.now, self.pause
            )
            if old is not None:  # what is wrong with a cloud does not end with the daemon
                new._faults, new._answers_to_lose = old._faults, old._answers_to_lose
                new.visible_after = old.visible_after
            self.clouds[cloud.name] = new
        plain = Site.of(self.config, self.slurm, self.ledger, self.clouds, lambda: self.now)
        self.site = replace(
            plain,
            monotonic=lambda: self.now,
            wait=self.wait,
            repairs_allowed_from=self.repairs_allowed_from,
            host=self.host,
        )
        self.daemon = Daemon(
            self.site, self.spool, Silent(), lambda _: Inline(),  # type: ignore[arg-type]
            features=FEATURES,
        )  # fmt: skip

    def stop(self) -> None:
        self.daemon = None
        self.ledger.close()

    def restart(self) -> None:
        self.stop()
        self.start()

    def lose_ledger(self) -> None:
        self.stop()
        for file in (*self.dir.glob("ledger.db*"), *self.dir.glob("journal/ledger[-.]*")):
            file.unlink()
        self.start()

    def close(self) -> None:
        self._closed.set()
        self.ledger.close()
        if self._own:
            shutil.rmtree(self.dir)

    def tick(self) -> None:
        """Killed ends the daemon, as a crash would."""
        if self.daemon is None:
            return
        try:
            self.daemon.guarded_tick()
        except Killed:
            self.stop()

    # time

    def wait(self, seconds: float) -> bool:
        """The clock goes on for the test's own thread alone: a thread in the background that looks
        again and again would move it on by hours, and never leave the processor.
        """
        if threading.get_ident() != self._thread:
            return self._closed.wait(0.01)
        self.now += seconds
        return False

    def pause(self, seconds: float) -> None:
        self.now += seconds

    def advance(self, seconds: float, step: float = 5.0) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now += min(step, end - self.now)
            self.live()
            self.tick()

    def live(self) -> None:
        """Let Slurm and the machines do what they do by themselves."""
        self.slurm.step()
        if not self.hears:
            return
        by_node: dict[str, list[Instance]] = {}
        for i in self.alive():
            if i.node in self.unheard:
                continue
            by_node.setdefault(i.node, []).append(i)
        for name in [n for pool in self.pools().values() for n in pool]:
            self._live(name, by_node.get(name, []))

    def _live(self, name: str, machines: Sequence[Instance]) -> None:
        node = self.slurm.node(name)
        if phase(node) is Phase.POWERING_UP:
            # A slurmd that booted before it was asked for is not the one slurmctld waits for.
            for i in machines:
                off = i.state is InstanceState.STOPPED
                if (
                    not off
                    and i.launched >= self.slurm.asked(name)
                    and self.now - i.launched >= BOOT
                ):
                    self.slurm.register(name, i.address or "")
        served = any(i.address == node.address and self._answers(i) for i in machines)
        if phase(node) is not Phase.UP or "DOWN" in node.states or served:
            self._gone_since.pop(name, None)
            self.slurm.hear(name)
            return
        if self.slurm.timeout == 0:  # nobody pings a node that is up
            return
        gone = self.now - self._gone_since.setdefault(name, self.now)
        if gone >= self.slurmd_timeout:
            self.slurm.lose(name)
        elif gone >= PING:
            self.slurm.miss(name)

    def _answers(self, machine: Instance) -> bool:
        """One that its cloud has as stopped does not, unless the cloud is wrong."""
        stopped = machine.state in (InstanceState.STOPPING, InstanceState.STOPPED)
        return not stopped or machine.id in self.really_running

    # what is there

    def alive(self, cloud: str | None = None) -> list[Instance]:
        """Our machines that are not terminated, whether the cloud shows them or not."""
        return [
            m.instance
            for name, account in self.accounts.items()
            if cloud in (None, name)
            for m in account.machines.values()
            if m.owner == "uuid-1" and m.instance.state is not InstanceState.TERMINATED
        ]

    def machines_of(self, node: str) -> list[str]:
        return [i.id for i in self.alive() if i.node == node]

    def kinds(self, subject: str) -> list[str]:
        return [d.kind for d in self.ledger.decisions.about(subject)]

    # Slurm's programs

    def program(
        self, kind: str, nodes: Sequence[str], jobs: Mapping[int, Sequence[str]], **changes: Any
    ) -> str:
        """As slurmctld's programs leave it."""
        if not changes:
            self.requests.append((kind, tuple(nodes), dict(jobs)))
        return leave_request(self.dir, next(self._numbers), self.now, kind, nodes, jobs, **changes)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.close()
