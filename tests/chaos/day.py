"""A day of a site: its disk is full for an hour, and its ledger is damaged once.

Prints a line for each thing that did not hold; exit 1 where there is one.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import sys

from tests.chaos.run import in_its_own_process
from tests.controller.world import T0

HOUR = 3600.0
DAY = 24 * HOUR
FULL = (11 * HOUR, 12 * HOUR)
DAMAGED = 18 * HOUR
NOTICED = 60.0
"""Seconds until the daemon knows that its disk is full, or has room again."""
IN_TIME = 300.0
"""Seconds until a machine has ended that Slurm has powered down: the grace, rounds and a margin."""
STEP = 20.0


def main() -> int:
    from tests.chaos.stage import Stage

    stage = Stage(1, kind="two clouds")
    try:
        day = Day(stage)
        day.pass_by()
        for kind, words in stage.books.wrongs:
            print(f"{kind}: {words}")
        print(day.summary())
        return bool(stage.books.wrongs)
    finally:
        stage.close()


class Day:
    """``modes`` are the times in which nothing may be bought, as (from, to, why)."""

    def __init__(self, stage) -> None:
        self.stage = stage
        stage.calm, stage.lingers, stage.wakes = True, 0.0, (10.0, 20.0)
        self.modes: list[list] = []
        self.off: dict[str, float] = {}
        self.latest = 0.0
        self._jobs = 0
        self._next = 60.0
        self._events = [
            (FULL[0], lambda: stage.disk.fail("full")),
            (FULL[1], lambda: stage.disk.fail("")),
            (DAMAGED, self._damage),
        ]

    def _damage(self) -> None:
        """All is in the file itself, so that nothing of what is spoilt stands in its journal, too."""
        path = self.stage.config.state / "ledger.db"
        self.stage.files.forget(str(path))
        with contextlib.closing(sqlite3.connect(path, timeout=0.0)) as db:
            db.execute("pragma wal_checkpoint(truncate)")
        with open(path, "r+b") as file:
            file.write(b"\xa5" * 4096)
            os.fsync(file.fileno())

    def pass_by(self) -> None:
        while self.stage.sched.now < DAY:
            self._step(users=True)
        while self.stage.sched.now < DAY + 2 * HOUR:
            self._step(users=False)
        self._judge()

    def _step(self, *, users: bool) -> None:
        stage = self.stage
        while self._events and self._events[0][0] <= stage.sched.now:
            self._events.pop(0)[1]()
        if users and stage.sched.now >= self._next:
            self._next += stage.rng.uniform(120.0, 1500.0)
            self._submit()
        stage.advance(STEP, step=STEP)
        self._watch()

    def _submit(self) -> None:
        stage, rng = self.stage, self.stage.rng
        cloud = rng.choice(sorted(stage.clouds))
        among = tuple(n for n, of in stage.nodes.items() if of == cloud)
        self._jobs += 1
        stage.submit(self._jobs, among, 1, rng.uniform(60.0, 2400.0), requeue=True)

    def _watch(self) -> None:
        from slurm_elastic.policies.nodes.node_state import Phase, phase

        stage = self.stage
        now, why = stage.sched.now, stage.ledger.end_only
        if why and (not self.modes or self.modes[-1][1] is not None):
            self.modes.append([now, None, why])
        elif not why and self.modes and self.modes[-1][1] is None:
            self.modes[-1][1] = now
        for one in stage.alive():
            if phase(stage.slurm.node(one.node)) is not Phase.POWERED_DOWN:
                self.off.pop(one.id, None)
                continue
            late = now - self.off.setdefault(one.id, now)
            self.latest = max(self.latest, late)
            if late > IN_TIME:
                stage.books.wrong("late", f"{one.id} of {one.node} lives for {late:.0f} s")

    def _judge(self) -> None:
        made = {i.id: i.launched - T0 for i in self.stage.books.machines.values()}
        self._judge_modes(made)
        self._judge_books(made)

    def _judge_modes(self, made: dict[str, float]) -> None:
        """Nothing was bought while so, and it was so exactly while the disk was full."""
        books = self.stage.books
        for begin, end, why in self.modes:
            if end is None:
                books.wrong("end-only", f"it is so still: {why}")
            elif bought := [i for i, at in made.items() if begin < at < end - STEP]:
                books.wrong("bought", f"{bought} while {why}")
        if not self._covers(FULL[0] + NOTICED, FULL[1]):
            books.wrong("end-only", f"the full disk was not noticed: {self.modes}")
        if self._covers(FULL[1] + NOTICED, FULL[1] + NOTICED):
            books.wrong("end-only", f"nothing is bought although there is room: {self.modes}")
        if not list(self.stage.config.state.glob("ledger.db.damaged-*")):
            books.wrong("damage", "no damaged ledger was set aside")

    def _judge_books(self, made: dict[str, float]) -> None:
        books = self.stage.books
        if books.jobs - books.completed:
            books.wrong("job lost", f"not completed: {sorted(books.jobs - books.completed)}")
        for part in ((0.0, FULL[0]), (FULL[1], DAMAGED), (DAMAGED, DAY)):
            if not any(part[0] < at < part[1] for at in made.values()):
                books.wrong("idle", f"nothing was bought from {part[0]:.0f} to {part[1]:.0f} s")
        if trouble := books.trouble(held=False):
            books.wrong("no rest", trouble)
        books.settle(DAY)
        if lost := {k: v for k, v in books.dollars.items() if k not in ("billed", "charged")}:
            books.wrong("cents", f"{lost}")

    def _covers(self, begin: float, end: float) -> bool:
        return any(a <= begin and end <= (b or DAY) for a, b, _ in self.modes if b is None or b > a)

    def summary(self) -> str:
        books = self.stage.books
        modes = "; ".join(f"{a:.0f} to {b or 0:.0f} s" for a, b, _ in self.modes)
        return (
            f"{len(books.jobs)} jobs, {len(books.completed)} completed; {len(books.machines)} machines; "
            f"end-only {modes}; the latest end {self.latest:.0f} s after its node was off; "
            f"${books.dollars['billed']:.4f} billed, ${books.dollars['charged']:.4f} charged"
        )


if __name__ == "__main__":
    sys.exit(in_its_own_process("tests.chaos.day", main))
