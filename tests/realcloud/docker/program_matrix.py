"""Real programs on real Slurm, saved and moved at random moments: what becomes of each.

The programs are data (matrix/programs.toml). Each runs once by itself and once under the launcher;
slurm-elastic-ckptman saves it shortly after its start, as its probe does, and moves it on three
operator's notices. A lane is three nodes, among which one program at a time is moved: to all of
them in turn, so that it comes to nodes that have run longer than its last one, and shorter.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import re
import shutil
import threading
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from slurm_elastic.state.ckptstate.facts import UnsavableRun
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
from .world import USER

HERE = Path(__file__).parent / "matrix"
MOVES = 3
LIMIT = 600.0
"""Seconds in which a program has to end."""
EARLY = "it ends before"
"""Why nothing is known of a program that was over before anything was done to it."""
_OURS = re.compile(rb"slurm-elastic:|slurmstepd|srun: |\[[0-9T:.-]+\] error: slurm-elastic: ")
"""Lines of the output that are not the program's; Slurm 26.05 writes what is told with the time."""
_ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")


class Outcome(StrEnum):
    """The outcome of a program; what is wrong or lost is never to be seen."""

    WORKS = "works"
    FEW = "too few moves"
    REFUSED = "refused"
    LATE = "late"
    WRONG = "wrong"
    LOST = "lost"
    BROKEN = "broken"


@dataclass(frozen=True)
class Program:
    """A program as the data has it."""

    name: str
    kind: str
    script: str
    packages: tuple[str, ...] = ()
    prepare: str = ""
    check: tuple[str, ...] = ()
    comment: str = ""
    moves: int = 0


@dataclass(frozen=True)
class Found:
    """A program's outcome: moved so often, in so many seconds beyond those that it runs by
    itself; why, where it did not work; the nodes that it was on.
    """

    program: Program
    outcome: Outcome
    moves: int = 0
    why: str = ""
    seconds: float = 0.0
    way: tuple[str, ...] = ()


def programs(path: Path = HERE / "programs.toml") -> tuple[Program, ...]:
    """All programs of the data, in its order."""
    data = tomllib.loads(path.read_text())
    return tuple(
        Program(
            name=name,
            kind=entry["class"],
            script=entry["script"],
            packages=tuple(entry.get("packages", ())),
            prepare=entry.get("prepare", ""),
            check=tuple(entry.get("check", ())),
            comment=entry.get("comment", ""),
            moves=entry.get("moves", 0),
        )
        for name, entry in data.items()
    )


def sample(found: Sequence[Program], size: int, seed: int) -> tuple[Program, ...]:
    """So many of them, one of each class in turn."""
    chance = random.Random(seed)
    classes: dict[str, list[Program]] = {}
    for program in found:
        classes.setdefault(program.kind, []).append(program)
    for members in classes.values():
        chance.shuffle(members)
    turns = itertools.chain.from_iterable(itertools.zip_longest(*classes.values()))
    return tuple(program for program in turns if program is not None)[:size]


def image(engine: Engine, release: str, found: Sequence[Program]) -> str:
    """The image of a Slurm host of that Debian with what the programs need, built if need be."""
    packages = sorted({package for program in found for package in program.packages})
    return engine.on_top(engine.image(release), "programs", HERE, PACKAGES=" ".join(packages))


class MatrixWorld(ServedWorld):
    """Three nodes for each lane, and the service."""

    def __init__(
        self, engine: Engine, image: str, *, lanes: int = 2, criu: Path | None = None
    ) -> None:
        super().__init__(engine, image, nodes=3 * lanes)
        if criu:
            self.node_mounts = {
                str(criu.parent): {"bind": str(criu.parent), "mode": "ro"},
                str(criu): {"bind": "/usr/sbin/criu", "mode": "ro"},
            }
        self.lanes = [tuple(f"n{3 * n + k}" for k in (1, 2, 3)) for n in range(lanes)]

    def lane(self, number: int) -> Lane:
        return Lane(self, self.lanes[number])

    def try_all(
        self, wanted: Sequence[Program], seed: int, told: Callable[[Found], None] = lambda _: None
    ) -> list[Found]:
        """The outcome of each program; as many are tried at a time as there are lanes."""
        free, lock = [self.lane(n) for n in range(len(self.lanes))], threading.Lock()

        def one(program: Program) -> Found:
            with lock:
                lane = free.pop()
            try:
                found = lane.attempt(program, seed)
            finally:
                with lock:
                    free.append(lane)
            told(found)
            return found

        with ThreadPoolExecutor(len(self.lanes)) as pool:
            return list(pool.map(one, wanted))

    def leave(self, order: AnyOrder) -> Path:
        """An operator's word to the service, as ``slurm-elastic ckpt`` leaves it."""
        return drop(self.shared / "state" / DROPS, order, time.time())

    def verdict(self, job: int) -> UnsavableRun | None:
        """The service's reason for which a job cannot be saved."""
        with self.memory() as state:
            return state.unsavable().get(job)


class _Over(Exception):  # noqa: N818 - read as a word
    """The program's fate is known."""

    def __init__(self, outcome: Outcome, why: str) -> None:
        super().__init__(why)
        self.outcome, self.why = outcome, why


class Lane:
    """Three nodes, and the one program that is there."""

    def __init__(self, world: MatrixWorld, nodes: tuple[str, ...]) -> None:
        self.world, self.nodes = world, nodes
        self.way: list[str] = []
        self.left = ""

    @property
    def moves(self) -> int:
        """How often its program has been moved."""
        return max(len(self.way) - 1, 0)

    def attempt(self, program: Program, seed: int) -> Found:
        """Run the program alone, then with interruptions; never fails for the program's sake."""
        self.way, self.left, begun = [], "", time.monotonic()
        chance = random.Random(f"{seed} {program.name}")
        try:
            self._attempt(program, chance)
            outcome, why = Outcome.WORKS, ""
        except _Over as over:
            outcome, why = over.outcome, over.why
        except AssertionError as error:
            outcome, why = Outcome.LOST, str(error).partition("\n")[0]
        finally:
            self._tidy()
        seconds = time.monotonic() - begun
        return Found(program, outcome, self.moves, why, seconds, tuple(self.way))

    def _attempt(self, program: Program, chance: random.Random) -> None:
        alone, moved = self._directories(program)
        job = self._submit(program, alone, "ckpt=none")
        shown = self._ended(job)
        if shown["JobState"] != "COMPLETED":
            raise _Over(Outcome.BROKEN, f"by itself: {_last(alone / 'out')}")
        seconds = _seconds(shown["RunTime"])
        job = self._submit(program, moved, ",".join(filter(None, ("ckpt=criu", program.comment))))
        refused = self._probe(job)
        if not refused:
            self._interrupt(program, job, seconds, chance)
        shown = self._ended(job)
        self._compare(program, job, alone, moved, shown)
        if refused:
            raise _Over(Outcome.REFUSED, refused)
        if self.moves < max(program.moves, 1):
            few = Outcome.FEW if program.moves else Outcome.BROKEN
            raise _Over(few, f"{EARLY} it is moved, or moved often enough")

    def _directories(self, program: Program) -> tuple[Path, Path]:
        """One as it is prepared for the run by itself, and one for the other."""
        jobs = self.world.shared / "jobs"
        alone, moved = jobs / f"{program.name}.alone", jobs / program.name
        host = self.world.nodes()[self.nodes[0]]
        words = f"mkdir {alone.name} && cd {alone.name} && set -e\n{program.prepare}"
        try:
            host.run(["sh", "-c", f"cd /shared/jobs && {words}"], user=USER, timeout=600.0)
        except AssertionError as error:
            raise _Over(Outcome.BROKEN, f"prepare: {error}") from error
        host.run(["cp", "-a", f"/shared/jobs/{alone.name}", f"/shared/jobs/{moved.name}"])
        return alone, moved

    def _submit(self, program: Program, directory: Path, comment: str) -> int:
        others = ",".join(n for pair in self.world.lanes if pair != self.nodes for n in pair)
        options = ["--chdir", f"/shared/jobs/{directory.name}", "-o", "out", "-t", "30",
                   f"--comment={comment}", f"--job-name={program.name}"]  # fmt: skip
        options += [f"--exclude={others}"] if others else []
        return self.world.sbatch(f"#!/bin/bash\n{program.script}", *options)

    def _ended(self, job: int) -> dict[str, str]:
        def over() -> dict[str, str] | None:
            shown = self.world.job(job)
            return shown if shown.get("JobState") in _ENDED else None

        return self.world.wait_for(over, f"job {job} ends", LIMIT)

    def _running(self, job: int) -> bool:
        return self.world.job(job).get("JobState") not in _ENDED

    def _probe(self, job: int) -> str:
        """As the probe a minute after its start does: why it cannot be saved, empty if it can."""
        self.world.wait_for(
            lambda: self.world.state_of(job) == "running" or not self._running(job),
            f"job {job} is under the launcher",
        )
        time.sleep(1.0)  # the program is past its first lines
        for _ in range(4):
            if not self._running(job):
                raise _Over(Outcome.BROKEN, f"{EARLY} its first save")
            asked = self.world.leave(SaveOrder(job=job))
            self.world.wait_for(lambda a=asked: not a.exists(), "it was tried")
            if self.world.saved(job):
                return ""
            if found := self.world.verdict(job):
                said = re.findall(r"no checkpoint: (.*?)(?= \d\d:\d\d|$)", self.world.told(job))
                return f"{found.cause} [{said[-1] if said else ''}]"
        raise _Over(Outcome.LATE, f"no save and no verdict: {self.world.told(job)[-200:]}")

    def _interrupt(self, program: Program, job: int, seconds: float, chance: random.Random) -> None:
        """Move the job at random moments of the time that it runs; one that must be moved so often
        is at work again before each.
        """
        for _ in range(MOVES):
            if program.moves:
                self._at_work(program, job)
            self._let_run(job, chance.uniform(0.02, 0.2) * seconds)
            node = self.world.job(job)["NodeList"]
            if not self._running(job) or node not in self.nodes:
                return
            self.way = self.way or [node]
            self._move(job, node)

    def _at_work(self, program: Program, job: int) -> None:
        """Wait until it has written one more line, or is over."""
        out = self.world.shared / "jobs" / program.name / "out"
        before = len(_lines(out))
        self.world.wait_for(
            lambda: len(_lines(out)) > before or not self._running(job),
            f"job {job} is at work after {self.moves} moves",
            LIMIT,
        )

    def _let_run(self, job: int, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until and self._running(job):
            time.sleep(min(1.0, max(until - time.monotonic(), 0.0)))

    def _move(self, job: int, node: str) -> None:
        world, before = self.world, len(self.world.migrations(job))
        told = world.leave(NoticeOrder(node=node, deadline=time.time() + 180.0, reason="matrix"))

        def over() -> bool:
            if told.exists():  # else it would come after all were withdrawn
                return False
            found = world.migrations(job)
            if len(found) > before:
                return found[-1].is_over
            return not self._running(job)

        world.wait_for(over, f"a move of job {job} is over", LIMIT)
        if self.left:  # not the node that it has left now: the next move goes to the third one
            world.leave(WithdrawOrder(node=self.left))
        self.left = node
        found = world.migrations(job)
        if len(found) == before or found[-1].step == "ended":
            return
        if not found[-1].is_over:  # it has ended by itself meanwhile
            return
        if found[-1].step != "back" or found[-1].image is None:
            raise _Over(
                Outcome.LATE, f"{found[-1].step}: {found[-1].note or world.told(job)[-300:]}"
            )
        self.way.append(world.job(job)["NodeList"])

    def _compare(
        self, program: Program, job: int, alone: Path, moved: Path, shown: Mapping[str, str]
    ) -> None:
        said = self.world.launcher_said(job)
        anew = [line for line in said if "starts over" in line or "is not used" in line]
        if anew:
            raise _Over(Outcome.LOST, anew[0])
        if shown["JobState"] != "COMPLETED":
            raise _Over(Outcome.WRONG, f"{shown['JobState']}: {_last(moved / 'out')}")
        for name in ("out", *program.check):
            if (difference := _difference(_lines(alone / name), _lines(moved / name))) is not None:
                raise _Over(Outcome.WRONG, f"{name}: {difference}")

    def _tidy(self) -> None:
        """No job and no notice of this lane's."""
        world = self.world
        for node in self.nodes:
            form = ("squeue", "-h", "-w", node, "-o", "%A")
            for number in set(world.slurm(*form, check=False).stdout.split()):
                world.slurm("scancel", number, check=False)
        for warned in world.warned():
            if warned.notice.node in self.nodes:
                world.leave(WithdrawOrder(node=warned.notice.node))
        world.resume(*self.nodes)
        world.wait_for(
            lambda: not world.slurm("squeue", "-h", "-w", ",".join(self.nodes)).stdout.strip(),
            "the lane is free",
        )


def _seconds(text: str) -> float:
    hours, minutes, seconds = text.rpartition("-")[2].split(":")
    return int(hours) * 3600.0 + int(minutes) * 60.0 + int(seconds)


def _lines(path: Path) -> list[bytes]:
    if not path.exists():
        return [b"no such file"]
    return [line for line in path.read_bytes().split(b"\n") if not _OURS.match(line)]


def _difference(wanted: list[bytes], found: list[bytes]) -> str | None:
    if wanted == found:
        return None
    at = next((n for n, (a, b) in enumerate(zip(wanted, found, strict=False)) if a != b), -1)
    if at < 0:
        return f"{len(found)} lines in place of {len(wanted)}"
    return f"line {at + 1} of {len(wanted)}: {found[at][:60]!r} in place of {wanted[at][:60]!r}"


def _last(path: Path) -> str:
    with contextlib.suppress(OSError):
        return " / ".join(path.read_text(errors="replace").splitlines()[-3:])[:300]
    return "no output"


@contextlib.contextmanager
def matrix_world(
    engine: Engine, image: str, lanes: int, criu: Path | None = None
) -> Iterator[MatrixWorld]:
    """Nodes that can checkpoint, by their release's CRIU or that one, and the service on the
    head.
    """
    with MatrixWorld(engine, image, lanes=lanes, criu=criu) as world:
        assert isinstance(world, MatrixWorld)
        world.serve(policy="on_notice", more="probe_after: 1h")
        yield world


def clear(world: MatrixWorld, name: str) -> None:
    """Remove a program's directories, so that it can be tried again."""
    for path in (world.shared / "jobs").glob(f"{name}*"):
        shutil.rmtree(path, ignore_errors=True)
