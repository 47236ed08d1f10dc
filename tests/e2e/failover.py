"""Heads that are struck again and again while jobs arrive: what must hold, counted."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from e2e.crash import FULL, local_records
from e2e.heads import HEADS, SERVICES, Pair
from e2e.world import live_ec2

from slurm_elastic.base.errors import SandboxError
from slurm_elastic.base.faults import POINTS
from slurm_elastic.model.cluster import InstanceState
from slurm_elastic.sandbox.daemons import ELASTICD, SLURMCTLD
from slurm_elastic.state.heads import Epochs
from slurm_elastic.state.ledger import Ledger

KINDS = ("all", "services", "still", "power")
PHASES = ("launch.", "suspend.")
FORGETS = 20.0
"""Seconds: Slurm may forget jobs and allocations that are younger when its acting host dies."""
BETWEEN = 3.0
"""Seconds between two jobs."""
STILL = 60.0
"""Seconds for which a head stands still."""
LONG = 180.0


@dataclass
class Job:
    """``accepted`` is when sbatch had its number."""

    name: str
    accepted: float


@dataclass
class Found:
    """The counts of a run; ``wrong`` has those that are to be 0."""

    strikes: Counter[str] = field(default_factory=Counter)
    points: Counter[str] = field(default_factory=Counter)
    doubles: set[str] = field(default_factory=set)
    orphans: int = 0
    uncharged: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    forgotten: list[str] = field(default_factory=list)
    repeated: int = 0
    jobs: int = 0
    hung: int = 0
    held: int = 0
    woken: list[str] = field(default_factory=list)
    takeovers: list[float] = field(default_factory=list)
    actions: list[float] = field(default_factory=list)

    @property
    def wrong(self) -> list[str]:
        """What must not be, in words."""
        counts = {
            "nodes with two machines": len(self.doubles), "machines left": self.orphans,
            "machines that no book has": len(self.uncharged), "jobs lost": len(self.lost),
            "acts of a head that woke": len(self.woken),
        }  # fmt: skip
        return [f"{count} {what}" for what, count in counts.items() if count]


class Failover:
    """Strikes of one pair, drawn by ``seed``."""

    def __init__(self, pair: Pair, seed: int, say: Callable[[str], None] = print) -> None:
        self.pair, self.site, self.say = pair, pair.sandbox, say
        self.draw = random.Random(seed)
        self.found = Found()
        self.jobs: list[Job] = []
        self.times: list[float] = []
        self._over = threading.Event()

    def run(self, kills: int) -> Found:
        """So many strikes, then until all is at rest again."""
        with self._beside(self._submit), self._beside(self._watch):
            for number in range(kills):
                self._given_back()
                self._strike(number)
            self._given_back()
        self._at_rest()
        return self.found

    @contextlib.contextmanager
    def _beside(self, work: Callable[[], None]) -> Iterator[None]:
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()

    def _submit(self) -> None:
        while not self._over.wait(BETWEEN):
            name = f"j{len(self.jobs):05d}-{os.urandom(2).hex()}"
            file = self.site.work / name
            script = f"echo begin >> {file}; sleep {self.draw.randint(1, 15)}; echo end >> {file}"
            where = self.draw.choice(("aws", "onprem"))
            try:
                self.site.submit(script, FULL, f"--partition={where}", f"--job-name={name}")
            except SandboxError as error:  # while no slurmctld answers
                self.say(f"not submitted: {error}")
            else:
                self.jobs.append(Job(name, time.time()))

    def _watch(self) -> None:
        while not self._over.wait(0.5):
            alive = [r.node for r in local_records(self.site) if r.state in _ALIVE]
            with contextlib.suppress(Exception):
                alive += live_ec2(self.site)
            self.found.doubles |= {n for n, count in Counter(alive).items() if n and count > 1}

    # one strike

    def _strike(self, number: int) -> None:
        kind = self.draw.choice(KINDS)
        point = self.draw.choice([p for p in POINTS if p.startswith(PHASES)])
        head, other = HEADS
        if self.draw.random() < 0.6:
            point = self._die_at(head, point, number)
        else:
            point = "a random moment"
            time.sleep(self.draw.uniform(0.0, 6.0))
        self.say(f"strike {number}: {kind} at {point}")
        self.found.strikes[kind] += 1
        self.found.points[point] += 1
        self.times.append(time.time())
        getattr(self, f"_{kind}")(head, other)

    def _die_at(self, head: str, point: str, number: int) -> str:
        """Have its daemon die there; the point, or what it came to."""
        once = self.pair.shared / f"died-{number}"
        fault = {"SLURM_ELASTIC_FAULT": point, "SLURM_ELASTIC_FAULT_ONCE": str(once)}
        self.pair.strike(head, [ELASTICD], signal.SIGTERM)
        self._wait(lambda: not self.pair.lives(head, ELASTICD), LONG, "it ends")
        self.pair.daemons.begin(head, ELASTICD, fault)
        until = time.monotonic() + 45.0
        while time.monotonic() < until:
            if once.exists():
                return point
            time.sleep(0.05)
        return "no step"

    def _all(self, head: str, other: str) -> None:
        self.pair.strike(head)
        self._taken_over(other)
        self.pair.begin(head)

    def _power(self, head: str, other: str) -> None:
        """The host goes, with all that runs on it."""
        self.pair.strike(head, (*SERVICES, SLURMCTLD))
        self.pair.processes.kill(f"{head}-host")
        self._taken_over(other)
        (self.site.layout.dir / "heads" / head / "ready").unlink()
        self.pair.processes.hold(head, self.site.layout.daemon_env())
        self._wait(lambda: self.pair.processes.ready(head), LONG, "the host is back")
        self.pair.begin(head)

    def _services(self, head: str, _: str) -> None:
        self.pair.strike(head, SERVICES)
        self.pair.begin(head, SERVICES)

    def _still(self, head: str, other: str) -> None:
        """All of it stands still; slurmctld, which would fight the other one, is dead by then."""
        lives = self.pair.lives(head, ELASTICD)
        self.pair.strike(head, SERVICES, signal.SIGSTOP)
        self.pair.strike(head, [SLURMCTLD])
        begun = time.monotonic()
        self._taken_over(other)
        time.sleep(max(STILL - (time.monotonic() - begun), 0.0))
        last = Epochs(self.pair.shared).newest()
        before = self._written()
        self.pair.strike(head, SERVICES, signal.SIGCONT)
        if lives:
            said = "acts no more"
            self._wait(lambda: said in self.pair.log(head)[-4000:], LONG, "it stands by")
        if self._written() - before:
            self.found.woken.append(f"{last}")
        self.pair.begin(head, [SLURMCTLD] if lives else [SLURMCTLD, ELASTICD])

    def _written(self) -> Counter[int]:
        """Lines by epoch but for the newest one, of all segments that are there."""
        last = Epochs(self.pair.shared).newest()
        found: Counter[int] = Counter()
        for path in (self.pair.shared / "journal").glob("*.jsonl"):
            for line in path.read_bytes().splitlines():
                with contextlib.suppress(msgspec.DecodeError):
                    one: Any = msgspec.json.decode(line)
                    found[one.get("epoch", 0)] += 1
        del found[last.number if last else 0]
        return found

    def _taken_over(self, other: str) -> None:
        begun = time.time()
        self._wait(lambda: self.pair.place() == HEADS.index(other), LONG, "Slurm takes over")
        slurm = time.time()
        self._wait(lambda: self.pair.acting() == other, LONG, f"{other} acts")
        self.found.takeovers.append(slurm - begun)
        self.found.actions.append(time.time() - slurm)

    def _given_back(self) -> None:
        self.found.hung += self.pair.given_back()

    def _wait(self, condition: Callable[[], object], seconds: float, what: str) -> None:
        until = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > until:
                raise TimeoutError(f"not within {seconds:g} s: {what}")
            time.sleep(0.1)

    # afterwards

    def _at_rest(self) -> None:
        self._wait(self._over_or_released, 900.0, "all jobs are over")
        until = time.monotonic() + 400.0
        while (left := self._left()) and time.monotonic() < until:
            time.sleep(1.0)
        self.found.orphans = left
        self._count_jobs()
        self._compare_books()

    def _over_or_released(self) -> bool:
        """Whether no job is left. Slurm gives the number of a job that it forgot to the next one,
        refuses that on the node where the first one runs, and holds it: an administrator lets go.
        """
        jobs = self.site.jobs()
        for job in jobs:
            if "PENDING" in job.states and job.priority == 0:
                self.found.held += 1
                self.site.run(["scontrol", "release", str(job.id)], check=False)
        for node in self.site.nodes().values():
            if node.reason.startswith("Duplicate jobid"):
                self.site.run(
                    ["scontrol", "update", f"nodename={node.name}", "state=resume"], check=False
                )
        time.sleep(1.0)
        return not jobs

    def _left(self) -> int:
        local = [r for r in local_records(self.site) if r.state in _ALIVE]
        return len(local) + len(live_ec2(self.site))

    def _count_jobs(self) -> None:
        self.found.jobs = len(self.jobs)
        for job in self.jobs:
            file: Path = self.site.work / job.name
            lines = file.read_text().split() if file.exists() else []
            self.found.repeated += max(lines.count("begin") - 1, 0)
            if "end" not in lines:
                since = file.stat().st_mtime if file.exists() else job.accepted
                young = any(-1 <= at - since < FORGETS for at in self.times)
                (self.found.forgotten if young else self.found.lost).append(job.name)

    def _compare_books(self) -> None:
        """Each machine that a cloud has ever had is in the journal, with its end."""
        book = Ledger(self.site.layout.dir / "state" / "ledger.db", read_only=True)
        with contextlib.closing(book):
            known = {m.instance.id: m.ended for m in book.machines.live(ended_since=0.0)}
        made = {m.id for m in self.site.ec2.state().machines if m.node}
        made |= {r.id for r in local_records(self.site)}
        self.found.uncharged = sorted(m for m in made if known.get(m) is None)


_ALIVE = (InstanceState.PENDING, InstanceState.RUNNING)
