"""Jobs that count on real Slurm, each struck once by a cause that takes its place: what becomes of
their work.

A lane is one cause, the node on which its jobs begin and another one to go to. A job writes each
step into its output, which goes back with the job to its image, and into a witness, which does not:
a step that is there twice was work that was lost and done again.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from slurm_elastic.state.ckptstate.facts import Migration, MigrationStep
from slurm_elastic.state.ckptstate.orders import DROPS, NoticeOrder, WithdrawOrder, drop

from .engine import Engine
from .served_world import ServedWorld

CAUSES = ("reclaim", "limit", "maintenance", "preemption", "drain")
GRACE = 150
"""Seconds that Slurm leaves a job that it preempts; a notice of a reclaim leaves as many."""
AHEAD = 140.0
"""Seconds until a maintenance or a dated drain: such plans are read once a minute."""
LONG = 400.0
"""Seconds in which a wave has to be over, on a machine that is busy with other work."""
MORE = 3
"""Steps that a job does after its move, and before it is struck."""
EXPECTED, SETTINGS = "30s", "probe_after: 1h, deadline_margin: 25s"
"""A save takes half a second, and twenty on a machine with thirty processes for each processor."""
_ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED")
COUNT = """\
#!/bin/bash
echo "start restart=${SLURM_RESTART_COUNT:-0}"
echo start >>"witness-$SLURM_JOB_ID"
for ((step = 0; ; step++)); do
    [ ! -e "end-$SLURM_JOB_ID" ] || break
    echo "step $step"
    echo "$step" >>"witness-$SLURM_JOB_ID"
    sleep PACE
done
echo finished
"""
URGENT = '#!/bin/sh\nwhile [ ! -e "end-$SLURM_JOB_ID" ]; do sleep 1; done\n'


@dataclass(frozen=True)
class Struck:
    """The outcome of a job. ``struck``: by its cause, and once; ``image``: it went on from one;
    ``begun`` how often its program began; ``missing`` steps that its output lacks, or has twice, or
    in another order; ``lost`` seconds of work that were done again; ``save`` and ``away`` (s): what
    its save took, and from the strike to its running again.
    """

    cause: str
    job: int
    struck: bool
    image: bool
    begun: int
    missing: int
    lost: float
    restarts: int
    state: str
    save: float
    away: float
    why: str

    @property
    def whole(self) -> bool:
        """Whether its work is as if nothing had been."""
        return self.begun == 1 and not self.missing and self.state == "COMPLETED"


class CausesWorld(ServedWorld):
    """Two nodes for each cause, and the service."""

    poll = 1.0  # many root parts together would take the processors from the jobs

    def __init__(self, engine: Engine, image: str, causes: Sequence[str], *, room: int = 8) -> None:
        self.causes, self.room = tuple(causes), room
        super().__init__(engine, image, nodes=2 * len(causes), cpus=room, conf=_conf(self.causes))

    def lanes(self) -> list[Lane]:
        """One for each cause."""
        return [_LANES[cause](self, cause, n) for n, cause in enumerate(self.causes)]

    def strike_all(
        self, jobs: int, seed: int, told: Callable[[Struck], None] = lambda _: None
    ) -> list[Struck]:
        """Strike so many jobs with each cause, the causes side by side; the outcome of each job."""
        with ThreadPoolExecutor(len(self.causes)) as pool:
            found = pool.map(lambda lane: lane.run(jobs, seed, told), self.lanes())
            return [one for some in found for one in some]


class Lane:
    """A cause, the node that it strikes, and the one that is left then."""

    options: Sequence[str] = ()
    comment = "ckpt=criu"

    def __init__(self, world: CausesWorld, cause: str, number: int) -> None:
        self.world, self.cause = world, cause
        self.node, self.refuge = f"n{2 * number + 1}", f"n{2 * number + 2}"
        self.paces: dict[int, str] = {}

    def run(self, jobs: int, seed: int, told: Callable[[Struck], None]) -> list[Struck]:
        """Wave after wave, each of as many jobs as the node has room for."""
        chance = random.Random(f"{seed} {self.cause}")
        found: list[Struck] = []
        while len(found) < jobs:
            some = self._wave(min(self.world.room, jobs - len(found)), chance)
            for one in some:
                told(one)
            found += some
        return found

    def strike(self, jobs: Sequence[int], chance: random.Random) -> None:
        """Let the cause come."""

    def lift(self) -> None:
        """The cause is over."""

    def _refuge(self, *words: str) -> None:
        """Jobs begin on the node, as the other one takes none until all are there."""
        self.world.slurm("scontrol", "update", f"nodename={self.refuge}", *words)

    def _wave(self, size: int, chance: random.Random) -> list[Struck]:
        world, jobs = self.world, list[int]()
        self._free()
        self._refuge("state=drain", "reason=later")
        for _ in range(size):
            jobs.append(self._submit(chance))
            time.sleep(chance.uniform(0.0, 2.0))
        self._counting(jobs)
        self._refuge("state=resume")
        time.sleep(chance.uniform(0.0, 15.0))
        began = time.time()
        self.strike(jobs, chance)
        back: dict[int, int] = {}
        self._until(
            lambda: not [job for job in jobs if not self._let_end(job, back)], f"{self.cause}: back"
        )
        self.lift()
        for job in jobs:
            (world.shared / "jobs" / f"end-{job}").touch()
        return [self._found(job, began) for job in jobs]

    def _free(self) -> None:
        """Wait until nothing keeps jobs off the node any more."""
        idle = ("sinfo", "-h", "-n", self.node, "-t", "idle", "-o", "%D")
        self.world.wait_for(
            lambda: self.world.slurm(*idle).stdout.split() == ["1"], f"{self.node} is free", LONG
        )

    def _submit(self, chance: random.Random) -> int:
        pace = f"{chance.uniform(0.4, 1.2):.2f}"
        job = self.world.sbatch(
            COUNT.replace("PACE", pace), "-o", "out-%j", "--mem=10", "-p", self.cause,
            f"--comment={self.comment}", *self.options,
        )  # fmt: skip
        self.paces[job] = pace
        return job

    def _counting(self, jobs: Sequence[int]) -> None:
        """Wait until each is under its launcher, and has done some steps."""
        self._until(lambda: all(self._goes_on(job, 0) for job in jobs), f"{self.cause}: all count")

    def _goes_on(self, job: int, since: int) -> bool:
        steps = len(self.world.steps(job))
        return steps >= since + MORE and self.world.state_of(job) == "running"

    def _let_end(self, job: int, back: dict[int, int]) -> bool:
        """Let a job end once it has worked for a while after its move: each by itself, lest its
        cause comes once more. ``back``: the steps of each when it was seen back. True when there is
        nothing to wait for any more.
        """
        moves = self.world.migrations(job)
        if not moves or not moves[-1].is_over:
            return False
        since = back.setdefault(job, len(self.world.steps(job)))
        if moves[-1].step is not MigrationStep.BACK:
            return True
        end = self.world.shared / "jobs" / f"end-{job}"
        if not end.exists() and self._goes_on(job, since):
            end.touch()
        return end.exists()

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait until ``condition`` holds, or give up: ``_found`` tells how far each job came."""
        with contextlib.suppress(AssertionError):
            self.world.wait_for(condition, what, LONG)

    def _found(self, job: int, began: float) -> Struck:
        world = self.world

        def over() -> dict[str, str] | None:
            shown = world.job(job)
            return shown if shown.get("JobState") in _ENDED else None

        try:
            shown = world.wait_for(over, f"job {job} ends", LONG)
        except AssertionError:
            shown = world.job(job)
            world.slurm("scancel", str(job), check=False)
        moves = world.migrations(job)
        last = moves[-1] if moves else None
        path = world.shared / "jobs" / f"witness-{job}"
        times = Counter(path.read_text().split() if path.exists() else [])
        begun = times.pop("start", 0)
        again = sum(count - 1 for count in times.values())
        image = last.image if last else None
        return Struck(
            cause=self.cause,
            job=job,
            struck=[str(m.cause) for m in moves] == [self.cause],
            image=image is not None and last is not None and last.step is MigrationStep.BACK,
            begun=begun,
            missing=_missing(world.steps(job)),
            lost=again * float(self.paces[job]),
            restarts=int(shown.get("Restarts", "0")),
            state=shown.get("JobState", "unknown"),
            save=image.seconds if image else 0.0,
            away=_away(last),
            why="" if last is None else f"{last.step}: {last.note or last.reason}",
        )


class Reclaim(Lane):
    """The provider's notice, as an agent or a person hands it on."""

    def strike(self, jobs: Sequence[int], chance: random.Random) -> None:
        self._order(NoticeOrder(node=self.node, deadline=time.time() + GRACE, reason="reclaim"))

    def lift(self) -> None:
        self._order(WithdrawOrder(node=self.node))

    def _order(self, order: NoticeOrder | WithdrawOrder) -> None:
        path = drop(self.world.shared / "state" / DROPS, order, time.time())
        self.world.wait_for(lambda: not path.exists(), "the order is carried out")


class Limit(Lane):
    """The job's own time limit: it comes by itself."""

    options = ("--time=3",)
    comment = "ckpt=criu,limit"


class Maintenance(Lane):
    """A reservation with the flag MAINT."""

    def strike(self, jobs: Sequence[int], chance: random.Random) -> None:
        self.world.slurm(
            "scontrol", "create", f"reservation={self.cause}", f"starttime={_at(AHEAD)}",
            "duration=60", f"nodes={self.node}", "flags=maint,ignore_jobs", "users=root",
        )  # fmt: skip

    def lift(self) -> None:
        self.world.slurm("scontrol", "delete", f"reservation={self.cause}")


class Drain(Lane):
    """An administrator's drain whose reason has a date."""

    def strike(self, jobs: Sequence[int], chance: random.Random) -> None:
        self._update("state=drain", f"reason=new disk at {_at(AHEAD)}")

    def lift(self) -> None:
        self._update("state=resume")

    def _update(self, *words: str) -> None:
        self.world.slurm("scontrol", "update", f"nodename={self.node}", *words)


class Preemption(Lane):
    """A job of higher priority for the place of each, at a random moment of its own."""

    def __init__(self, world: CausesWorld, cause: str, number: int) -> None:
        super().__init__(world, cause, number)
        self.urgent: list[int] = []

    def strike(self, jobs: Sequence[int], chance: random.Random) -> None:
        # Places that are free would be taken first.
        for _ in range(self.world.room):
            self.urgent.append(
                self.world.sbatch(URGENT, "-p", "urgent", "--mem=10", "-o", "/dev/null",
                                  "--comment=ckpt=none")
            )  # fmt: skip
            time.sleep(chance.uniform(0.0, 3.0))

    def lift(self) -> None:
        for job in self.urgent:
            (self.world.shared / "jobs" / f"end-{job}").touch()
        for job in self.urgent:
            self.world.wait_job(job)
        self.urgent.clear()


_LANES: Mapping[str, type[Lane]] = {
    "reclaim": Reclaim,
    "limit": Limit,
    "maintenance": Maintenance,
    "preemption": Preemption,
    "drain": Drain,
}


def _conf(causes: Sequence[str]) -> str:
    """A partition for each cause, and one whose jobs preempt those of the cause of that name."""
    lines = []
    for n, cause in enumerate(causes):
        grace = f" GraceTime={GRACE}" if cause == "preemption" else ""
        lines.append(f"PartitionName={cause} Nodes=n{2 * n + 1},n{2 * n + 2}{grace}")
    if "preemption" in causes:
        node = f"n{2 * causes.index('preemption') + 1}"
        lines += [
            "PreemptType=preempt/partition_prio", "PreemptMode=REQUEUE",
            f"PartitionName=urgent Nodes={node} PriorityTier=10",
        ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _at(seconds: float) -> str:
    """That many seconds from now, as Slurm has times; the containers' clocks tell UTC."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(time.time() + seconds))


def _away(move: Migration | None) -> float:
    """Seconds in which the job did not work: from its save's begin to its running again."""
    if move is None or move.step is not MigrationStep.BACK:
        return 0.0
    return move.changed - move.began


def _missing(steps: Sequence[int]) -> int:
    """How many steps are not where they are to be: each once, in order."""
    wanted = list(range(max(steps, default=-1) + 1))
    if steps == wanted:
        return 0
    counts = Counter(steps)
    return sum(abs(counts[n] - 1) for n in wanted) or 1


@contextlib.contextmanager
def causes_world(
    engine: Engine, image: str, causes: Sequence[str], *, room: int = 8
) -> Iterator[CausesWorld]:
    """The world, with the service on its head; jobs are saved for a cause alone."""
    with CausesWorld(engine, image, causes, room=room) as world:
        assert isinstance(world, CausesWorld)
        world.serve(policy="on_notice", more=SETTINGS, expected=EXPECTED)
        yield world
