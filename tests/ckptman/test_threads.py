"""What the loop, the pollers and the crew of ckptman share: whoever comes in between, each sees a
whole reading, and an older one never takes the place of a newer one.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from meanwhile import Meanwhile, Watched

from slurm_elastic.ckptman.snapshot import SlurmPlans, SnapshotReader
from tests.ckptman.world import CkptWorld


@pytest.fixture
def world() -> Iterator[CkptWorld]:
    made = CkptWorld()
    yield made
    made.close()


def test_a_poller_gets_the_machine_that_it_has_read(
    world: CkptWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop has read the ledger before the machine was in it, and is slower."""
    reader: Any = world.service.reader  # type: ignore[union-attr]
    reader._lock = Watched()
    world.runs(1)
    machine = world.machine("pub1")
    live, found = world.ledger.machines.live, list[Any]()

    def poll() -> None:
        found.append(reader.machines([machine]))

    other = Meanwhile(reader._lock, poll)

    def older() -> Any:
        monkeypatch.undo()
        other()
        return ()

    assert live()
    monkeypatch.setattr(world.ledger.machines, "live", older)
    reader.machines(["i-unknown"])
    other.end()
    assert machine in found[0]
    assert machine in reader._machines


def test_a_look_is_blind_if_its_own_machines_are_of_before(
    world: CkptWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A poller that can read the ledger again in between says nothing of what the loop has seen."""
    reader: SnapshotReader = world.service.reader  # type: ignore[union-attr]
    world.runs(1)
    reader.machines()
    notices = world.state.notices

    def away(*_: object) -> None:
        raise sqlite3.OperationalError("away")

    def poll_first() -> Any:
        monkeypatch.undo()
        reader.machines()
        return notices()

    monkeypatch.setattr(world.ckpt.ledger, "refresh", away)
    monkeypatch.setattr(world.state, "notices", poll_first)
    assert reader.read().blind
    assert not reader.read().blind


def test_an_older_reading_of_slurms_plans_is_not_believed(
    world: CkptWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans = SlurmPlans(world.ckpt)
    nodes = world.slurm.nodes
    drained = {n: nodes()[n] for n in nodes()}

    def later() -> Any:
        monkeypatch.undo()
        world.now += 1
        newer = threading.Thread(target=plans.read)
        newer.start()
        newer.join()
        plans_of_now.append(plans._plans)
        monkeypatch.setattr("slurm_elastic.ckptman.snapshot.of_node", lambda *_: object())
        return drained

    plans_of_now = list[object]()
    monkeypatch.setattr(world.slurm, "nodes", later)
    plans.read()
    assert plans._plans == plans_of_now[0]
