"""Both services of an earlier release were killed in the middle of their work, and this release
goes on. The files are those releases' own, made by these steps: one without a journal
(data/before-journal), and one whose journal has sentences as causes (data/journal-schema-17).
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace

from slurm_elastic.controller import launch
from slurm_elastic.state.ckptstate.facts import MigrationStep
from slurm_elastic.state.ledger import Ledger
from tests.ckptman.world import CkptWorld
from tests.controller.world import Killed

DATA = Path(__file__).parents[1] / "data"
FILES = ("ledger", "checkpoints")


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[CkptWorld]:
    made = CkptWorld()
    made.patch(monkeypatch)
    yield made
    made.close()


def killed_at_work(world: CkptWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job runs, one was saved and is not requeued yet, of one the machine is about to be asked for."""

    def reach(point: str) -> None:
        if point == "launch.after-intent":
            raise Killed(point)

    for job, node in ((1, "op1"), (2, "pub1")):
        world.slurm.submit(job, (node,))
        world.until(lambda job=job: "RUNNING" in world.job(job).states)
    world.advance(120)
    with monkeypatch.context() as patched:
        patched.setattr(launch, "reach", reach)
        world.slurm.submit(3, ("pub2",))
        world.until(lambda: world.daemon is None, 120)
    world.die_at = "migration.saved"
    world.interrupt("pub1")
    world.until(lambda: world.service is None, 90)


def without_journal(world: CkptWorld) -> None:
    for name in FILES:
        with closing(sqlite3.connect(world.dir / f"{name}.db")) as db:
            db.executescript((DATA / "before-journal" / f"{name}.sql").read_text())


def with_journal(world: CkptWorld) -> None:
    for name in FILES:
        shutil.copy(DATA / "journal-schema-17" / f"{name}-000001.jsonl", world.dir / "journal")


def replaced(world: CkptWorld, release: Callable[[CkptWorld], None]) -> None:
    """The files of both services by those of that release, and the tags by what these call them."""
    for file in (*world.dir.glob("*.db*"), *world.dir.glob("journal/*")):
        file.unlink()
    release(world)
    with closing(Ledger(world.dir / "ledger.db")) as ledger:
        tags = {m.instance.id: m.instance.generation for m in ledger.machines.live(ended_since=0.0)}
    for account in world.accounts.values():
        for id_, machine in account.machines.items():
            machine.instance = replace(machine.instance, generation=tags[id_])


RELEASES = pytest.mark.parametrize("release", [without_journal, with_journal])


@RELEASES
def test_the_services_of_an_earlier_release_are_gone_on_with(
    world: CkptWorld, monkeypatch: pytest.MonkeyPatch, release: Callable[[CkptWorld], None]
) -> None:
    killed_at_work(world, monkeypatch)
    replaced(world, release)
    running, saved = world.machines_of("op1"), world.saver.calls.copy()
    world.start()
    world.start_ckptman()

    (opened,) = world.ledger.launches.open()
    assert (opened.nodes, opened.jobs) == (("pub2",), (3,))
    assert [m.step for m in world.state.migrations()] == [MigrationStep.SAVED]
    world.until(lambda: all("RUNNING" in world.job(job).states for job in (1, 2, 3)))

    assert world.machines_of("op1") == running
    assert {job: world.job(job).restarts for job in (1, 2, 3)} == {1: 0, 2: 1, 3: 0}
    assert world.saver.calls == saved, "what was saved is not saved once more"
    (moved,) = world.state.migrations(since=0.0)
    assert (moved.step, moved.image and moved.image.number) == (MigrationStep.BACK, 1)
    (bought,) = [i for i in world.alive() if i.node == "pub2"]
    assert bought.generation == opened.generation
    assert world.ledger.launches.open() == ()
    assert len(world.alive()) == len({i.node for i in world.alive()}) == 3


@RELEASES
def test_what_was_paid_before_is_still_paid(
    world: CkptWorld, monkeypatch: pytest.MonkeyPatch, release: Callable[[CkptWorld], None]
) -> None:
    killed_at_work(world, monkeypatch)
    replaced(world, release)
    world.start()
    world.start_ckptman()
    world.advance(3600)
    for cloud, account in world.accounts.items():
        charged = sum(
            max((row.ended_at or world.now) - row.instance.launched, 60.0)
            * row.instance.price
            / 3600
            for row in world.ledger.machines.live(ended_since=0.0)
            if row.instance.cloud == cloud
        )
        assert charged == pytest.approx(world.ledger.books.dollars(cloud, 0.0, world.now))
        rows = {m.instance.id for m in world.ledger.machines.live(ended_since=0.0)}
        assert {i for i in account.machines if i.startswith(cloud)} <= rows
