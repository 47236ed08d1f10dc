"""A daemon with a Slurm in memory and a cloud with faults. Only the test advances their clock."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from msgspec.structs import replace as altered

from slurm_elastic.base.hostlist import compress
from slurm_elastic.config import Config, PoolSettings
from slurm_elastic.config.clouds import CloudSettings
from slurm_elastic.config.sections.access import Who
from slurm_elastic.config.sections.timings import Timings
from slurm_elastic.controller.context import Site
from slurm_elastic.controller.daemon import Daemon
from slurm_elastic.features.registry import FEATURES
from slurm_elastic.model.cluster import EndAnswer, Instance, LaunchSpec, Limits, Notice, Offer, Pool
from slurm_elastic.model.protocols import Provider, Stops, list_tidily
from slurm_elastic.policies.nodes.node_state import Phase, phase
from slurm_elastic.slurm.client.fake_timed import TimedSlurm
from slurm_elastic.state.ledger import Ledger
from slurm_elastic.state.spool import Spool
from slurm_elastic.testing.census import Census
from slurm_elastic.testing.contract import CLUSTER
from slurm_elastic.testing.in_memory import Inline, Silent, leave_request

NODES = 2
BOOT_S = 5.0
FOR_EVER_S = 1e6
"""Seconds. Emulators have their own clock, so the bench itself ends the hiding of machines."""
TIMINGS = Timings(
    suspend_time=20, suspend_timeout=10, resume_timeout=900, reconcile_interval=10, orphan_timeout=20,
    capacity_cooldown=30, quota_cooldown=60, max_cooldown=60,
)  # fmt: skip


class BenchBed(Protocol):
    """A cloud, and control over it. ``strike`` makes the next calls fail. It returns False if the
    cloud's API has no such failure of that call.
    """

    name: str
    pool: Pool

    def settings(self) -> CloudSettings: ...

    def open(self, clock: Callable[[], float]) -> Provider: ...

    def alive(self) -> set[str]: ...

    def nodes(self) -> Mapping[str, str]:
        """Return the node of each living machine, by machine id."""
        ...

    def strike(self, fault: str, call: str) -> bool: ...

    def heal(self) -> None: ...

    def standing(self) -> object:
        """Return the active fault. The value changes when the fault strikes."""
        ...


@runtime_checkable
class Lagging(Protocol):
    """A bed whose cloud can hide new machines from its lists. ``show`` shows all machines again at
    once.
    """

    def hide_fresh(self, seconds: float) -> None: ...

    def show(self) -> None: ...


class Hiding:
    """A provider whose lists lack new machines for a while (eventual consistency).

    If the bed can, the cloud itself hides them, so that the provider's own look-ups lack them, too.
    ``struck``: the calls during which a machine was hidden.
    """

    def __init__(
        self, inner: Provider, bed: BenchBed, clock: Callable[[], float], census: Census
    ) -> None:
        self.name = inner.name
        self.inner = inner
        self._census = census
        self.struck: set[str] = set()
        self._bed = bed
        self._clock = clock
        self._hidden_for = 0.0
        self._visible: dict[str, float] = {}
        self._lag: float | None = None
        self._first: float | None = None

    def hide(self, seconds: float, *, view: bool = False) -> bool:
        """Hide new machines for so many seconds after their launch; if the cloud hides them, after
        the first launch. ``view``: hide them only from the daemon. Returns True if the cloud does.
        """
        if isinstance(self._bed, Lagging) and not view:
            self._bed.hide_fresh(FOR_EVER_S)
            self._lag = seconds
            return True
        self._hidden_for = seconds
        return False

    def step(self) -> None:
        """Show the machines if their time is over."""
        if self._lag is None or self._first is None:
            return
        if self._clock() - self._first >= self._lag:
            self._lag = None
            assert isinstance(self._bed, Lagging)
            self._bed.show()

    def hidden(self) -> set[str]:
        """Return the living machines that lists lack."""
        if self._lag is not None:
            living = self._bed.alive()
            if living and self._first is None:
                self._first = self._clock()
            return living
        if not self._hidden_for:
            return set()
        now = self._clock()
        return {i for i in self._bed.alive() if self._visible.get(i, 0.0) > now}

    def offers(self, pool: Pool) -> Sequence[Offer]:
        return self.inner.offers(pool)

    def launch(self, spec: LaunchSpec) -> Sequence[Instance]:
        try:
            started = self.inner.launch(spec)
        finally:
            self._strike("launch")
            self._census.count()
        for machine in started:
            self._visible.setdefault(machine.id, self._clock() + self._hidden_for)
        self._strike("launch")
        return started

    def instances(self) -> Sequence[Instance]:
        return self._shown(self.inner.instances())

    def tidy(self) -> Sequence[Instance]:
        return self._shown(list_tidily(self.inner))

    def _shown(self, machines: Sequence[Instance]) -> Sequence[Instance]:
        hidden = self._strike("list")
        assert self._lag is None or not machines, "the cloud lists what it is to hide"
        return [i for i in machines if i.id not in hidden]

    def terminate(self, ids: Sequence[str]) -> Mapping[str, EndAnswer]:
        if not self.hidden().isdisjoint(ids):
            self.struck.add("terminate")
        try:
            return self.inner.terminate(ids)
        finally:
            self._census.count()

    def _strike(self, call: str) -> set[str]:
        hidden = self.hidden()
        if hidden:
            self.struck.add(call)
        return hidden

    def recipe(self, pool: Pool) -> str:
        return self._stops.recipe(pool)

    def stop(self, ids: Sequence[str]) -> Collection[str]:
        return self._stops.stop(ids)

    def start(self, instance: str) -> None:
        self._stops.start(instance)

    @property
    def _stops(self) -> Stops:
        assert isinstance(self.inner, Stops)
        return self.inner

    def notices(self) -> Sequence[Notice]:
        return self.inner.notices()

    def check(self) -> None:
        self.inner.check()


class Bench:
    """The daemon, its Slurm and its cloud. ``census`` counts the machines of each node."""

    def __init__(self, bed: BenchBed, directory: Path) -> None:
        self.bed = bed
        self.now = time.time()
        self.dir = directory
        self.nodes = bed.pool.nodes[:NODES]
        self.config = _config(bed, directory, self.nodes)
        self.spool = Spool(directory)
        self.spool.create()
        self._numbers = iter(range(10**6))
        self.slurm = TimedSlurm(
            self.nodes, lambda: self.now, self._program, suspend_time=TIMINGS.suspend_time,
            suspend_timeout=TIMINGS.suspend_timeout, resume_timeout=TIMINGS.resume_timeout,
        )  # fmt: skip
        self.ledger = Ledger(directory / "ledger.db")
        self.census = Census(bed.nodes)
        self.cloud = Hiding(bed.open(lambda: self.now), bed, lambda: self.now, self.census)
        self.before: object = None
        self.daemon = self._daemon()

    def _daemon(self) -> Daemon:
        bed = self.bed
        site = Site.of(
            self.config, self.slurm, self.ledger, {bed.pool.cloud: self.cloud}, lambda: self.now
        )
        site = replace(site, monotonic=lambda: self.now, wait=self._wait)
        return Daemon(
            site, self.spool, Silent(), lambda _: Inline(),  # type: ignore[arg-type]
            features=FEATURES,
        )  # fmt: skip

    def restart(self) -> None:
        """Kill the daemon and start another one. Its memory is lost, and the configuration is read
        again.
        """
        self.config = _config(self.bed, self.dir, self.nodes)
        self.cloud.inner = self.bed.open(lambda: self.now)
        self.daemon = self._daemon()

    def close(self) -> None:
        self.ledger.close()

    def _program(self, kind: str, nodes: Sequence[str], jobs: Mapping[int, Sequence[str]]) -> None:
        leave_request(self.dir, next(self._numbers), self.now, kind, nodes, jobs)

    def _wait(self, seconds: float) -> bool:
        self.now += seconds
        return False

    # what happens

    def advance(self, seconds: float, step: float = 5.0) -> None:
        end = self.now + seconds
        while self.now < end:
            self.step(min(step, end - self.now))

    def step(self, seconds: float) -> None:
        self.now += seconds
        self.slurm.step()
        self.cloud.step()
        alive = self.bed.alive()
        self.census.count()
        for machine in self.ledger.machines.live():
            node = machine.instance.node
            # A machine that is about to end must not register its node again.
            booted = self.now - self.slurm.asked(node) >= BOOT_S
            if machine.is_wanted and machine.instance.id in alive and booted:
                self.slurm.register(node, machine.instance.address or node)
        self.daemon.guarded_tick()

    def until(self, condition: Callable[[], bool], event: str) -> float:
        """Advance the clock until ``condition`` is true. Returns the seconds that it took."""
        started_at = self.now
        while not condition():
            assert self.now - started_at < 7200, f"{event} did not come: {self.story()}"
            self.step(10.0)
        return self.now - started_at

    # what is there

    def running(self) -> bool:
        return all("RUNNING" in job.states for job in self.slurm.queue().values())

    def settled(self) -> bool:
        """Return True if ledger, cloud and Slurm agree, no launch is open, no node is powering up,
        and each running node has one machine.
        """
        live = self.ledger.machines.live()
        up = sorted(n for n in self.nodes if phase(self.slurm.node(n)) is Phase.UP)
        moving = [n for n in self.nodes if phase(self.slurm.node(n)) is Phase.POWERING_UP]
        return (
            {m.instance.id for m in live} == self.bed.alive()
            and sorted(m.instance.node for m in live) == up
            and not moving
            and not self.ledger.launches.open()
            and not any(m.retired_at is not None for m in live)
        )

    def kinds(self) -> list[str]:
        """Return the kinds of the decisions about the nodes and the job, in order of time."""
        decisions = {d for s in (*self.nodes, "job:1") for d in self._decisions(s)}
        return [kind for _, kind in sorted(decisions)]

    def _decisions(self, subject: str) -> list[tuple[float, str]]:
        return [(d.at, d.kind) for d in self.ledger.decisions.about(subject)]

    def story(self) -> str:
        rows = [
            (m.instance.id, m.instance.node, m.missed_listings, m.cause)
            for m in self.ledger.machines.live()
        ]
        states = {n: sorted(self.slurm.node(n).states) for n in self.nodes}
        return f"{self.kinds()[-12:]} ledger={rows} cloud={self.bed.alive()} slurm={states}"


@contextmanager
def open_bench(bed_in: Callable[[Path], Any]) -> Iterator[Bench]:
    """Yield a bench with a new bed in a directory of its own. All faults are removed at the end.

    The local agent's socket and its slurmd processes need a short path that other users may enter.
    """
    with tempfile.TemporaryDirectory(prefix="se-faults-", dir="/tmp") as place:
        Path(place).chmod(0o755)
        bed = bed_in(Path(place))
        bench = Bench(bed, Path(place))
        try:
            yield bench
        finally:
            bed.heal()
            bench.close()
            if hasattr(bed, "close"):
                bed.close()


def _config(bed: BenchBed, directory: Path, nodes: Sequence[str]) -> Config:
    pool = bed.pool
    return Config(
        cluster=CLUSTER,
        clouds=(altered(bed.settings(), limits=Limits(dollars_per_hour=100.0)),),
        pools=(
            PoolSettings(
                name=pool.name, cloud=pool.cloud, nodes=compress(nodes), cpus=pool.cpus,
                memory=pool.real_memory + 300, real_memory=pool.real_memory,
                instance_types=pool.instance_types, markets=pool.markets,
                max_stopped=pool.stopped, stopped_price=pool.stopped_price, image=pool.image,
                max_age=pool.max_age,
            ),
        ),
        state_dir=str(directory), allow=Who(accounts=("physics",)), timings=TIMINGS,
    )  # fmt: skip
