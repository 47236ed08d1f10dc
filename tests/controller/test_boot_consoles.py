"""The console of a machine that did not register is kept, and operators alone see it."""

from __future__ import annotations

import io
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rich.console import Console

from slurm_elastic.base.errors import TransientError
from slurm_elastic.cli.jobs import explain
from slurm_elastic.cli.operate.console import Output
from slurm_elastic.config import Timings
from slurm_elastic.controller.launching.boot_consoles import (
    CONSOLE_LINES,
    MAX_CONSOLES,
    MAX_LINE_LENGTH,
    last_lines,
    record_consoles,
)
from slurm_elastic.model.causes import decoded, encoded
from slurm_elastic.model.causes.pool_failures import ConsoleRead
from slurm_elastic.policies.launch.boots import given_up_after
from slurm_elastic.watch.door.questions import Chain
from slurm_elastic.watch.door.records import read_facts
from slurm_elastic.watch.door.visibility import Viewer, seen_chain, seen_facts
from slurm_elastic.watch.view import status_view
from tests.controller.world import ONP, World

RESUME = 100.0
LATE = given_up_after(RESUME)
LOG = "".join(f"[{n:3}.0] boot step {n}\r\n" for n in range(50)) + (
    "cloud-init: password=hunter2swordfish\n\x1b[31mslurmd: fatal: no munge key\x1b[0m\n\n"
)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    timings = Timings(suspend_time=900, suspend_timeout=30, resume_timeout=RESUME)
    made = World(tmp_path, timings=timings)
    made.unheard = set(ONP)
    yield made
    made.close()


def failed(world: World, console: Callable[[str], str]) -> None:
    """Both machines of a job boot and never register."""
    world.clouds["onp"].console = console  # type: ignore[attr-defined]
    world.slurm.submit(1, ONP, 2, partitions=("onp",))
    world.advance(LATE + 20, step=1)
    assert world.alive("onp") == []


def consoles(world: World, node: str = "op1") -> list[ConsoleRead]:
    decisions = world.ledger.decisions.about(node)
    return [d.cause for d in decisions if isinstance(d.cause, ConsoleRead)]


def explained(world: World, subject: str) -> str:
    file = io.StringIO()
    console: Console = Output(file=file, width=100, markup=False, emoji=False, highlight=False)
    explain.show(world.config, world.slurm, subject, console=console)
    return file.getvalue()


def test_the_last_lines_are_kept_before_the_machine_ends(world: World) -> None:
    asked: list[str] = []

    def console(instance: str) -> str:
        asked.append(instance)
        assert instance in {m.instance.id for m in world.ledger.machines.live()}
        return LOG

    failed(world, console)
    (kept,) = consoles(world)
    assert kept.machine == asked[0]
    assert kept.last_line == "slurmd: fatal: no munge key"
    assert len(kept.lines) == CONSOLE_LINES
    assert len(asked) <= MAX_CONSOLES
    told = explained(world, "op1")
    assert "ends with: slurmd: fatal: no munge key" in " ".join(told.split())
    assert "boot step 49" in told
    assert "hunter2" not in told
    assert "slurm-elastic try rack" in told
    asked.clear()
    explained(world, "op1")
    assert asked == [], "nobody asks the cloud when a person looks"


def test_status_and_doctor_show_the_last_line(world: World) -> None:
    failed(world, lambda _: LOG)
    facts = read_facts(world.config, world.now)
    assert facts.consoles == {"rack": "slurmd: fatal: no munge key"}
    (told,) = (n for n in status_view(world.config, facts).attention if "Pool rack" in n.text)
    assert "its console ended with: slurmd: fatal: no munge key" in told.text
    assert "slurm-elastic try rack" in told.do


def test_a_user_who_is_no_operator_does_not_see_it(world: World) -> None:
    failed(world, lambda _: LOG)
    viewer = Viewer.of(1000, [], world.slurm.jobs())
    facts = seen_facts(read_facts(world.config, world.now), viewer)
    assert facts.consoles == {}
    assert "munge key" not in str(status_view(world.config, facts))
    chain = Chain(decisions=world.ledger.decisions.about("op1"), machines=())
    assert "munge key" in str(chain)
    assert "munge key" not in str(seen_chain(chain, viewer))
    assert seen_chain(chain, viewer).decisions, "the failure itself stays"


@pytest.mark.parametrize("error", [TransientError("onp", "Busy", "later"), RuntimeError("SDK")])
def test_a_cloud_that_shows_no_console_keeps_no_machine(world: World, error: Exception) -> None:
    def console(_: str) -> str:
        raise error

    failed(world, console)
    assert consoles(world) == []


def test_a_console_that_cannot_be_recorded_keeps_no_machine(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its end follows in the same step, which would be repeated for ever."""

    def is_locked(*_: object) -> None:
        raise sqlite3.OperationalError("database is locked")

    world.slurm.submit(1, ONP, 2, partitions=("onp",))
    world.advance(5)
    (machine, *_) = world.ledger.machines.live()
    console = ConsoleRead(machine=machine.instance.id, lines=("panic",))
    monkeypatch.setattr(world.ledger.decisions, "record", is_locked)
    record_consoles(world.site, [console], [machine], "boots")


def test_an_empty_console_is_no_decision(world: World) -> None:
    failed(world, lambda _: "\n \n")
    assert consoles(world) == []


def test_lines_are_bounded_and_plain() -> None:
    assert last_lines("a\r10%\r100%\n\x1b[1;31mred\x1b[0m\x07\n") == ("100%", "red")
    (long,) = last_lines("x" * 1000)
    assert len(long) == MAX_LINE_LENGTH
    assert len(last_lines("line\n" * 10**6)) == CONSOLE_LINES


def test_the_cause_is_read_back() -> None:
    cause = ConsoleRead(machine="i-1", lines=("a", "b"))
    assert decoded(encoded(cause)) == cause
    assert "ends with: b" in str(cause)
