"""The ledger changes launches as the table says, and each row of the table happens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ledger_cases import T0, instance, offer, spec
from msgspec.structs import replace

from slurm_elastic.base.errors import SlurmElasticError
from slurm_elastic.model.causes import Quoted
from slurm_elastic.model.launch_states import (
    INTENDED,
    Done,
    Failed,
    LaunchState,
    launch_columns_of,
    launch_state_of,
)
from slurm_elastic.model.memory import Launch
from slurm_elastic.state.ledger import Ledger
from slurm_elastic.state.ledger.launches import (
    LAUNCH_COLUMNS,
    LAUNCH_TRANSITIONS,
    LaunchCall,
    launch_from,
    launch_row,
    launches_allowed,
)

STATES: tuple[LaunchState, ...] = (
    INTENDED, Done(finished_at=T0 + 1), Failed(finished_at=T0 + 1, error="no capacity"),
)  # fmt: skip


class Recorder:
    """A ledger whose calls are compared with the table: ``used`` are the rows that happened."""

    def __init__(self, path: Path) -> None:
        self.ledger = Ledger(path)
        self.now = T0
        self.used: set[tuple[LaunchCall, type | None, type | None]] = set()

    def launches(self) -> dict[str, Launch]:
        """All rows. Each is the row that its own value makes."""
        found = {}
        for row in self.ledger.store.select(f"select {LAUNCH_COLUMNS} from launches"):
            launch = launch_from(row)
            assert launch_row(launch) == tuple(row)
            found[launch.generation] = launch
        return found

    def make(self, call: LaunchCall) -> None:
        before = self.launches()
        self.now += 1
        with suppress(SlurmElasticError):
            self._calls[call]()
        after = self.launches()
        for generation in before.keys() | after.keys():
            old, new = before.get(generation), after.get(generation)
            if old is not None and new is not None and old.state == new.state:
                continue
            kinds = tuple(None if one is None else type(one.state) for one in (old, new))
            allowed = [(r.before or (None,), r.after) for r in LAUNCH_TRANSITIONS if r.call is call]
            assert any(kinds[0] in froms and kinds[1] is to for froms, to in allowed), kinds
            self.used.add((call, *kinds))

    @property
    def _calls(self) -> dict[LaunchCall, Callable[[], object]]:
        ledger, now = self.ledger, self.now
        return {
            LaunchCall.INTEND: lambda: ledger.launches.record_intent(
                spec("g1", ("pub1",)), "r", now
            ),
            LaunchCall.FAILED: lambda: ledger.launches.record_failure("g1", "no capacity", now),
            LaunchCall.LAUNCHED: lambda: ledger.machines.record_launch(
                "g1", [instance("i-1")], now
            ),
            LaunchCall.ADOPT: lambda: ledger.machines.adopt(
                instance("i-1", bought=offer(cloud="east")), "burst", now, clouds={"east"}
            ),
            LaunchCall.START: self._start,
        }

    def _start(self) -> None:
        """A machine is stopped, and started for another launch."""
        with suppress(SlurmElasticError):  # of a launch that was started before
            self.ledger.machines.adopt(instance("i-9", generation="g9"), "burst", self.now)
        self.ledger.stops.record_stopping("aws", ["i-9"], Quoted(text="idle"), self.now)
        self.ledger.stops.record_stopped("aws", {"i-9": 0.01}, self.now)
        row = Launch(
            generation=f"s{self.now}", request="r", pool="burst", cloud="aws", nodes=("pub1",),
            jobs=(), offer=offer(), created=self.now,
        )  # fmt: skip
        (machine,) = self.ledger.stops.machines()
        self.ledger.stops.record_start(row, machine, self.now)


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Recorder]:
    recorder = Recorder(tmp_path / "ledger.db")
    with closing(recorder.ledger):
        yield recorder


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from(list(LaunchCall)), max_size=12))
def test_any_calls_change_launches_as_the_table_says(
    tmp_path_factory: pytest.TempPathFactory, calls: list[LaunchCall]
) -> None:
    recorder = Recorder(tmp_path_factory.mktemp("ledger") / "ledger.db")
    with closing(recorder.ledger):
        for call in calls:
            recorder.make(call)


@pytest.mark.parametrize(
    ("call", "before", "after"),
    [(r.call, before, r.after) for r in LAUNCH_TRANSITIONS for before in r.before or (None,)],
)
def test_each_row_of_the_table_happens(
    made: Recorder, call: LaunchCall, before: type | None, after: type | None
) -> None:
    if before is not None:
        made.make(LaunchCall.INTEND)
        if before is Failed:
            made.make(LaunchCall.FAILED)
    made.make(call)
    assert (call, before, after) in made.used


@pytest.mark.parametrize("state", STATES)
def test_a_state_is_kept_whole(made: Recorder, state: LaunchState) -> None:
    assert launch_state_of(*launch_columns_of(state), created=T0) == state
    made.make(LaunchCall.INTEND)
    launch = replace(made.launches()["g1"], state=state)
    assert msgspec.json.decode(msgspec.json.encode(launch), type=Launch) == launch
    for call in LaunchCall:
        rows = [r for r in LAUNCH_TRANSITIONS if r.call is call and r.before]
        if rows:
            word = launch_columns_of(state).state
            found = made.ledger.store.select(
                f"select {launches_allowed(call)} as allowed from (select ? as state)", word
            )
            assert bool(found[0]["allowed"]) == any(type(state) in r.before for r in rows)


def test_a_row_of_an_earlier_release_may_lack_the_time_of_its_answer() -> None:
    assert launch_state_of("done", None, None, T0) == Done(finished_at=T0)
    assert launch_state_of("failed", None, None, T0) == Failed(finished_at=T0, error="")
