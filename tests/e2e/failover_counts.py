"""What must hold when heads are struck while jobs arrive, counted by what clouds, jobs and files say."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, fields
from pathlib import Path

from e2e.crash import local_records
from e2e.heads import Pair
from e2e.world import live_machines, machines

from slurm_elastic.model.cluster import InstanceState
from slurm_elastic.sandbox.cluster import Sandbox

ALIVE = (InstanceState.PENDING, InstanceState.RUNNING)
LOOK = 0.5
"""Seconds between two looks at the clouds."""
EXACT = 1.0
"""Seconds by which a cloud's times and ours may differ: EC2 tells whole ones."""


@dataclass
class Found:
    """The counts of a run; ``wrong`` has those that are to be 0."""

    strikes: Counter[str] = field(default_factory=Counter)
    points: Counter[str] = field(default_factory=Counter)
    doubles: set[str] = field(default_factory=set)
    orphans: int = 0
    uncharged: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    unsaved: list[str] = field(default_factory=list)
    unheard: list[str] = field(default_factory=list)
    forgotten: list[str] = field(default_factory=list)
    orders: list[str] = field(default_factory=list)
    repeated: int = 0
    moved: int = 0
    jobs: int = 0
    hung: int = 0
    held: int = 0
    woken: list[str] = field(default_factory=list)
    late: list[str] = field(default_factory=list)
    takeovers: list[float] = field(default_factory=list)
    actions: list[float] = field(default_factory=list)
    bill: float = 0.0
    journal: float = 0.0

    @property
    def zeros(self) -> Mapping[str, Sequence[str] | set[str]]:
        """What must not be."""
        left = [f"{self.orphans} machines"] if self.orphans else []
        return {
            "nodes with two machines": self.doubles,
            "machines left after the last job": left,
            "machines that the journal charges for less than they ran": self.uncharged,
            "jobs lost": self.lost,
            "jobs that we moved without their work": self.unsaved,
            "orders lost": self.orders,
            "heads that woke and called or wrote": self.woken,
        }

    @property
    def wrong(self) -> list[str]:
        """What must not be, in words."""
        return [f"{what}: {', '.join(sorted(w))}" for what, w in self.zeros.items() if w]


def together(all_found: Sequence[Found]) -> Found:
    """The counts of several runs as one's."""
    made = Found()
    for found, field_ in itertools.product(all_found, fields(Found)):
        one, more = getattr(made, field_.name), getattr(found, field_.name)
        setattr(made, field_.name, one | more if isinstance(one, set) else one + more)
    return made


@dataclass
class Seen:
    """A machine as its cloud tells it: there since ``launched``, and still at ``last`` (Unix time)."""

    node: str
    launched: float
    last: float


class Clouds:
    """Looks at the machines of both clouds again and again, beside the services."""

    def __init__(self, site: Sandbox) -> None:
        self._site = site
        self.seen: dict[str, Seen] = {}
        self.doubles: set[str] = set()

    def look(self) -> None:
        """Once; a cloud that does not answer is looked at the next time."""
        now = time.time()
        alive = [(r.id, r.node, r.launched) for r in local_records(self._site) if r.state in ALIVE]
        with contextlib.suppress(Exception):
            alive += [(m.id, m.node, m.launched) for m in live_machines(self._site)]
        for id_, node, launched in alive:
            self.seen.setdefault(id_, Seen(node, launched, now)).last = now
        counted = Counter(node for _, node, _ in alive if node)
        self.doubles |= {node for node, count in counted.items() if count > 1}

    def left(self) -> int:
        """Machines that run now."""
        local = [r for r in local_records(self._site) if r.state in ALIVE]
        return len(local) + len(live_machines(self._site))

    def compare(self, found: Found) -> None:
        """What each machine cost by its cloud's word, and by the journal's."""
        book = {m.instance.id: m for m in machines(self._site, ended=True)}
        for id_, seen in self.seen.items():
            known = book.get(id_)
            if known is None or known.ended_at is None:
                found.uncharged.append(f"{id_} of {seen.node} is in no book with its end")
                continue
            price = known.instance.price
            found.bill += (seen.last - seen.launched) * price / 3600
            found.journal += (known.ended_at - known.instance.launched) * price / 3600
            early = seen.last - known.ended_at
            late = known.instance.launched - seen.launched
            if max(early, late) > EXACT:
                found.uncharged.append(
                    f"{id_} of {seen.node}: begins {late:.1f} s late, ends {early:.1f} s early"
                )


@dataclass(frozen=True)
class Job:
    """``accepted`` is when sbatch had its number (Unix time); ``counts``: it saves itself, and does
    each step of its work once.
    """

    name: str
    accepted: float
    counts: bool = False


@dataclass(frozen=True)
class Span:
    """From ``begin`` to ``end`` (Unix time) Slurm may forget what it has done."""

    begin: float
    end: float


@dataclass(frozen=True)
class Told:
    """What is known of the jobs besides what they wrote: ``moves``, how often we requeued each, by
    its name; ``ended``, those of which a slurmctld has said that it ends them; ``unheard``, those
    whose notice ended while no head acted.
    """

    moves: Mapping[str, int]
    ended: Set[str]
    unheard: Set[str]


def count_jobs(
    work: Path, jobs: Sequence[Job], spans: Sequence[Span], told: Told, found: Found
) -> None:
    """How each job fared by what it wrote."""
    found.jobs = len(jobs)
    for job in jobs:
        lines = words(work / job.name)
        begun = [int(n) for n in words(work / f"runs-{job.name}")] if job.counts else []
        runs = len(begun) if job.counts else lines.count("begin")
        ours = told.moves.get(job.name, 0)
        found.moved += ours
        found.repeated += max(runs - 1 - ours, 0)
        if "end" not in lines:
            forgotten = _is_young(work, job, spans) or job.name not in told.ended
            (found.forgotten if forgotten else found.lost).append(job.name)
        elif job.counts and not _each_once(work, job) and runs - 1 <= ours:
            (found.unheard if job.name in told.unheard else found.unsaved).append(job.name)


def _is_young(work: Path, job: Job, spans: Sequence[Span]) -> bool:
    files = [work / name for name in (job.name, f"runs-{job.name}")]
    times = [job.accepted, *(f.stat().st_mtime for f in files if f.exists())]
    return any(span.begin <= at <= span.end for span in spans for at in times)


def _each_once(work: Path, job: Job) -> bool:
    done = words(work / f"steps-{job.name}")
    return done == [str(n) for n in range(1, len(done) + 1)]


def words(path: Path) -> list[str]:
    """Those of the file; none where it is not there."""
    return path.read_text().split() if path.exists() else []


def written(pair: Pair) -> Mapping[str, int]:
    """The size of each segment of the shared journals."""
    return {p.name: p.stat().st_size for p in (pair.shared / "journal").glob("*.jsonl")}
