"""Jobs of known sizes on real Slurm, saved by CRIU: what a save takes, how long a job stands still
for it, and what becomes of it when its node is taken after a notice.

A job fills its memory, with bytes that nobody can compress or with such as anybody can, keeps a
digest of it and writes down the time twenty times a second: a gap is a time in which it stood
still.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from slurm_elastic.model.checkpoint import Image
from slurm_elastic.state.ckptstate.facts import MigrationStep
from slurm_elastic.state.ckptstate.orders import (
    DROPS,
    AnyOrder,
    NoticeOrder,
    SaveOrder,
    WithdrawOrder,
    drop,
)

from .engine import Engine
from .served_world import ServedWorld

CONTENTS = ("incompressible", "compressible")
MIB, GIB = 1 << 20, 1 << 30
NOTICE = 120.0
"""Seconds from a notice of EC2's until the machine is gone."""
ROOM = 8
"""Jobs on a node, at most."""
LONG = 1800.0
"""Seconds in which the slowest save of a busy machine ends."""
SPARE = 2 * GIB
"""Memory that is left to the rest of the machine."""
IMAGES = 3
"""Images of a job at most: two are kept while the next is written."""
BEAT = 0.05
FILL = f"""\
#!/usr/bin/python3
import hashlib, os, time
job, size, piece = os.environ["SLURM_JOB_ID"], SIZE, {MIB}
print("begun", os.environ.get("SLURM_RESTART_COUNT", "0"), flush=True)
data = bytearray(size)
for at in range(0, size, piece):
    data[at : at + piece] = WITH
first = hashlib.sha256(data).digest()
print("filled", flush=True)
while not os.path.exists(f"end-{{job}}"):
    with open(f"beats-{{job}}", "a") as beats:
        print(time.time(), file=beats)
    time.sleep({BEAT})
print("whole" if hashlib.sha256(data).digest() == first else "changed", flush=True)
"""
_WITH = {
    "incompressible": "os.urandom(piece)",
    "compressible": 'b"%015d " % at * (piece // 16)',
}
_ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")


@dataclass(frozen=True)
class Case:
    """So many jobs side by side, each of ``size`` bytes."""

    size: int
    content: str
    count: int

    def __str__(self) -> str:
        return f"{self.count} x {self.size / GIB:.2g} GiB {self.content}"

    def lacks(self, place: str) -> str:
        """The reason why this machine cannot hold them, with images in that directory; or empty."""
        memory, disk = self.count * self.size + SPARE, IMAGES * self.count * self.size
        there, room = _available(), shutil.disk_usage(place)
        if memory > there:
            return f"{_gib(memory)} of memory needed, {_gib(there)} available"
        # The root part leaves a twentieth of a file system free, and a user takes half of it.
        most = min(room.free - room.total // 20, room.total // 2)
        return f"{_gib(disk)} of disk needed, {_gib(most)} may be used" if disk > most else ""


@dataclass(frozen=True)
class Held:
    """The outcome of a job. ``save``, ``size``, ``still``: its periodic save took so many seconds,
    the image has so many bytes, the job stood still for so long. At the notice: the seconds that a
    save was expected to take (``predicted``), whether it ``fits``; ``late``: the seconds it took
    (0: none was made); ``image``: the save from which the job went on, ``fresh`` if that was made
    for the notice, in time. ``whole``: it began once and has all its memory.
    """

    case: Case
    job: int
    save: float
    size: int
    still: float
    predicted: float
    fits: bool
    late: float
    image: int | None
    fresh: bool
    whole: bool
    away: float
    why: str = ""

    @property
    def lost(self) -> bool:
        """Whether it was to be saved in time, and was not; or has not even its last image."""
        return not self.whole or self.image is None or (self.fits and not self.fresh)


class SizesWorld(ServedWorld):
    """Two nodes, of which the first is taken in each case, and the service."""

    poll = 1.0  # many root parts together would take the processors from the saves

    def __init__(self, engine: Engine, image: str) -> None:
        # One is never in use: `calm` waits for nodes that are idle or mixed.
        super().__init__(engine, image, nodes=2, cpus=ROOM + 1)

    def attempt(self, case: Case, notice: float = NOTICE) -> list[Held]:
        """Take the node of the case's jobs after that notice; the outcome of each job."""
        self.slurm("scontrol", "update", "nodename=n2", "weight=100")  # they begin on n1
        jobs = [self._submit(case) for _ in range(case.count)]
        for job in jobs:
            self.wait_for(lambda j=job: self._stands(j), f"job {job} is filled", LONG)
        for job in jobs:
            self._leave(SaveOrder(job=job))
        for job in jobs:
            self.wait_for(lambda j=job: self.saved(j), f"job {job} is saved", LONG)
        before = {job: (self.saved(job)[0], self._still(job)) for job in jobs}
        deadline = time.time() + notice
        self._leave(NoticeOrder(node="n1", deadline=deadline, reason="reclaim"))
        for job in jobs:
            self.wait_for(lambda j=job: self._is_over(j), f"the move of job {job}", LONG)
        self._take_away()
        for job in jobs:
            (self.shared / "jobs" / f"end-{job}").touch()
        return [self._found(case, job, *before[job], deadline) for job in jobs]

    def _submit(self, case: Case) -> int:
        script = FILL.replace("SIZE", str(case.size)).replace("WITH", _WITH[case.content])
        return self.sbatch(script, "-o", "out-%j", "--mem=10", "--comment=ckpt=criu")

    def _stands(self, job: int) -> bool:
        return self.output(job)[-1:] == ["filled"] and self.state_of(job) == "running"

    def _leave(self, order: AnyOrder) -> None:
        """An operator's word to the service, as ``slurm-elastic ckpt`` leaves it."""
        drop(self.shared / "state" / DROPS, order, time.time())

    def _still(self, job: int) -> float:
        """The longest time for which the job stood still until now."""
        beats = (self.shared / "jobs" / f"beats-{job}").read_text().split()
        times = [float(beat) for beat in beats]
        return max((b - a for a, b in pairwise(times)), default=0.0) - BEAT

    def _is_over(self, job: int) -> bool:
        moves = self.migrations(job)
        return bool(moves) and moves[-1].is_over

    def _take_away(self) -> None:
        """The machine is gone, and later there is another one for its node."""
        self.nodes()["n1"].kill()
        self._leave(WithdrawOrder(node="n1"))
        self.start_node("n1")
        self.calm("n1", "n2")

    def _found(self, case: Case, job: int, last: Image, still: float, deadline: float) -> Held:
        def over() -> bool:
            return self.job(job).get("JobState") in _ENDED

        self.wait_for(over, f"job {job} ends", LONG)
        move, output = self.migrations(job)[-1], self.output(job)
        back = move.image if move.step is MigrationStep.BACK else None
        is_new = back is not None and back.number > last.number
        return Held(
            case=case,
            job=job,
            save=last.seconds,
            size=last.size,
            still=still,
            predicted=move.dump,
            fits=move.saves,
            late=back.seconds if is_new and back is not None else 0.0,
            image=back.number if back is not None else None,
            fresh=is_new and move.reached["saved"] <= deadline,
            whole=output[:1] == ["begun 0"] and output[-1:] == ["whole"],
            away=move.changed - move.began,
            why=f"{move.step}: {move.note or move.reason}",
        )


@contextlib.contextmanager
def sizes_world(engine: Engine, image: str) -> Iterator[SizesWorld]:
    """The world, with the service on its head; jobs are saved when they are asked, and at a
    notice.
    """
    with SizesWorld(engine, image) as world:
        assert isinstance(world, SizesWorld)
        world.serve(policy="on_notice", more="probe_after: 1d", expected="60s")
        yield world


def _available() -> int:
    """Bytes of memory that programs may still have."""
    with open("/proc/meminfo") as file:
        found = dict(line.split(":", 1) for line in file)
    return int(found["MemAvailable"].split()[0]) * 1024


def _gib(size: float) -> str:
    return f"{size / GIB:.1f} GiB"
