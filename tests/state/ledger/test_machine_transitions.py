"""The ledger changes the state of machines as the table says, and each row of the table happens."""

from __future__ import annotations

import itertools
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from ledger_cases import T0, instance, offer, spec
from msgspec.structs import replace

from slurm_elastic.model.causes import Quoted
from slurm_elastic.model.cluster import Instance, InstanceState
from slurm_elastic.model.machine_states import (
    Columns,
    Ended,
    Ending,
    Lost,
    MachineState,
    Serving,
    Stopped,
    Stopping,
    columns_of,
    state_of,
)
from slurm_elastic.model.memory import PART, Launch, Machine, whole_id
from slurm_elastic.state.ledger import Ledger
from slurm_elastic.state.ledger import machine_transitions as table
from slurm_elastic.state.ledger.machine_transitions import (
    CONDITIONS,
    TRANSITIONS,
    LedgerCall,
    StateType,
    Transition,
)
from slurm_elastic.state.ledger.machines import MACHINE_COLUMNS, Machines, machine_from, machine_row
from slurm_elastic.state.ledger.stops import StopRows

IDS = tuple(f"i-{n}" for n in range(4))
DISK = 0.01
PAGE = Path(__file__).parents[3] / "docs/design/25-machine-states-are-data.md"
ANY_STATE = st.sampled_from(list(InstanceState))
SOME = st.lists(st.sampled_from(IDS), min_size=1, unique=True)


class Recorder:
    """A ledger whose calls are compared with the table: ``used`` are the rows that happened."""

    def __init__(self, path: Path) -> None:
        self.ledger = Ledger(path)
        self.now = T0
        self.used: set[tuple[LedgerCall, StateType | None, StateType]] = set()
        self._launches = 0

    def machines(self) -> dict[str, Machine]:
        """All rows by their ids. Each is the row that its own value makes."""
        rows = self.ledger.store.select(f"select {MACHINE_COLUMNS} from machines")
        found: dict[str, Machine] = {}
        for row in rows:
            machine = machine_from(row)
            assert machine.instance.id not in found, "paid twice"
            assert machine_row(machine) == tuple(row), "a row that no state makes"
            found[machine.instance.id] = machine
        return found

    def make(self, call: LedgerCall, change: Callable[[float], object]) -> None:
        """Make the call, and compare each row before and after it."""
        before = self.machines()
        self.now += 1
        change(self.now)
        after = self.machines()
        assert set(before) <= set(after)
        parts = {whole_id(i): m for i, m in after.items() if PART in i and i not in before}
        turned = set()
        for id_, machine in after.items():
            if id_ in before and before[id_].life == machine.life and id_ not in parts:
                continue
            if id_ not in before and PART in id_:
                continue
            row = self._row(call, before.get(id_), machine)
            if row.begins_part:
                turned.add(id_)
                assert parts[id_].life == Ended(ended_at=self.now, before=before[id_].life)
        assert set(parts) == turned, "a part of a life that the table does not know"

    def _row(self, call: LedgerCall, before: Machine | None, after: Machine) -> Transition:
        kind = None if before is None else type(before.life)
        rows = [
            row
            for row in TRANSITIONS
            if row.call is call
            and row.after is type(after.life)
            and (kind in row.before or (kind is None and not row.before))
        ]
        assert len(rows) == 1, f"{call}: {before and before.life} -> {after.life}"
        was = Columns() if before is None else columns_of(before.life)
        now = columns_of(after.life)
        written = {name for name in Columns._fields if getattr(was, name) != getattr(now, name)}
        assert written <= set(rows[0].writes)
        self.used.add((call, kind, type(after.life)))
        return rows[0]

    def known(self, id_: str, state: InstanceState) -> Instance:
        """The machine as its cloud lists it."""
        machine = self.machines().get(id_)
        number = IDS.index(id_)
        if machine is not None:
            return replace(machine.instance, state=state)
        return instance(id_, f"pub{number + 1}", f"g{number}", state, launched=self.now)

    # the calls

    def launched(self, id_: str, state: InstanceState = InstanceState.PENDING) -> None:
        one = self.known(id_, state)
        if self.ledger.launches.get(one.generation) is None:
            self.ledger.launches.record_intent(spec(one.generation, (one.node,)), "r", self.now)
        self.make(
            LedgerCall.LAUNCHED,
            lambda now: self.ledger.machines.record_launch(one.generation, [one], now),
        )

    def adopt(self, id_: str, state: InstanceState) -> None:
        one = self.known(id_, state)
        self.make(LedgerCall.ADOPT, lambda now: self.ledger.machines.adopt(one, "burst", now))

    def renamed(self, id_: str, state: InstanceState) -> None:
        """Its cloud has another name in the configuration since."""
        one = self.known(id_, state)
        one = replace(one, cloud="west" if one.cloud == "aws" else "aws")
        clouds = [one.cloud]
        self.make(
            LedgerCall.ADOPT,
            lambda now: self.ledger.machines.adopt(one, "burst", now, clouds=clouds),
        )

    def observe(self, seen: dict[str, InstanceState], ago: float = 0.0) -> None:
        listed = [self.known(id_, state) for id_, state in seen.items()]
        self.make(
            LedgerCall.OBSERVE, lambda now: self.ledger.machines.observe("aws", listed, now - ago)
        )

    def record_registration(self, *ids: str) -> None:
        self.make(
            LedgerCall.REGISTERED,
            lambda now: self.ledger.machines.record_registration("aws", ids, now),
        )

    def record_ending(self, *ids: str) -> None:
        cause = Quoted(text="idle")
        self.make(
            LedgerCall.SUSPENDING,
            lambda now: self.ledger.machines.record_ending("aws", ids, cause, now),
        )

    def record_end(self, *ids: str) -> None:
        cause = Quoted(text="gone")
        self.make(
            LedgerCall.ENDED, lambda now: self.ledger.machines.record_end("aws", ids, cause, now)
        )

    def record_stopping(self, *ids: str) -> None:
        cause = Quoted(text="kept")
        self.make(
            LedgerCall.STOPPING,
            lambda now: self.ledger.stops.record_stopping("aws", ids, cause, now),
        )

    def record_stop_failure(self, *ids: str) -> None:
        cause = Quoted(text="cannot be stopped")
        self.make(
            LedgerCall.FAILED, lambda _: self.ledger.stops.record_stop_failure("aws", ids, cause)
        )

    def record_stopped(self, *ids: str) -> None:
        prices = dict.fromkeys(ids, DISK)
        self.make(LedgerCall.DONE, lambda now: self.ledger.stops.record_stopped("aws", prices, now))

    def record_start(self, id_: str) -> None:
        machine = self.machines().get(id_)
        if machine is None:
            return
        self._launches += 1
        row = Launch(
            generation=f"s{self._launches}", request="r", pool="burst", cloud="aws",
            nodes=(machine.instance.node,), jobs=(1,), offer=offer(),
            created=self.now,
        )  # fmt: skip
        self.make(LedgerCall.START, lambda now: self.ledger.stops.record_start(row, machine, now))

    def record_start_refusal(self, id_: str) -> None:
        cause = Quoted(text="no room")
        self.make(
            LedgerCall.START_REFUSED,
            lambda now: self.ledger.stops.record_start_refusal("aws", id_, DISK, cause, now),
        )

    def record_ending_of_stopped(self, *ids: str) -> None:
        cause = Quoted(text="too old")
        self.make(
            LedgerCall.END,
            lambda now: self.ledger.stops.record_ending_of_stopped("aws", ids, cause, now),
        )

    def record_running(self, id_: str) -> None:
        one = self.known(id_, InstanceState.RUNNING)
        self.make(LedgerCall.RUNS_AGAIN, lambda now: self.ledger.stops.record_running(one, now))


class AnyCalls(RuleBasedStateMachine):
    """Calls in any order, with whatever a cloud may list: ``Recorder.make`` compares each."""

    def __init__(self) -> None:
        super().__init__()
        self._dir = tempfile.TemporaryDirectory()
        self.made = Recorder(Path(self._dir.name) / "ledger.db")

    def teardown(self) -> None:
        self.made.ledger.close()
        self._dir.cleanup()

    @initialize(over=st.booleans())
    def begin(self, over: bool) -> None:
        for id_ in IDS[:2]:
            self.made.launched(id_)
        if over:
            self.made.launched(IDS[2], InstanceState.TERMINATED)

    @rule(id_=st.sampled_from(IDS), state=ANY_STATE)
    def launched(self, id_: str, state: InstanceState) -> None:
        self.made.launched(id_, state)

    @rule(id_=st.sampled_from(IDS), state=ANY_STATE)
    def adopt(self, id_: str, state: InstanceState) -> None:
        self.made.adopt(id_, state)

    @rule(id_=st.sampled_from(IDS), state=ANY_STATE)
    def renamed(self, id_: str, state: InstanceState) -> None:
        self.made.renamed(id_, state)

    @rule(seen=st.dictionaries(st.sampled_from(IDS), ANY_STATE), ago=st.sampled_from([0.0, 3.0]))
    def observe(self, seen: dict[str, InstanceState], ago: float) -> None:
        self.made.observe(seen, ago)

    @rule(ids=SOME)
    def registered(self, ids: list[str]) -> None:
        self.made.record_registration(*ids)

    @rule(ids=SOME)
    def suspending(self, ids: list[str]) -> None:
        self.made.record_ending(*ids)

    @rule(ids=SOME)
    def ended(self, ids: list[str]) -> None:
        self.made.record_end(*ids)

    @rule(ids=SOME)
    def stopping(self, ids: list[str]) -> None:
        self.made.record_stopping(*ids)

    @rule(ids=SOME)
    def failed(self, ids: list[str]) -> None:
        self.made.record_stop_failure(*ids)

    @rule(ids=SOME)
    def done(self, ids: list[str]) -> None:
        self.made.record_stopped(*ids)

    @rule(id_=st.sampled_from(IDS))
    def start(self, id_: str) -> None:
        self.made.record_start(id_)

    @rule(id_=st.sampled_from(IDS))
    def start_refused(self, id_: str) -> None:
        self.made.record_start_refusal(id_)

    @rule(ids=SOME)
    def end(self, ids: list[str]) -> None:
        self.made.record_ending_of_stopped(*ids)

    @rule(id_=st.sampled_from(IDS))
    def runs_again(self, id_: str) -> None:
        self.made.record_running(id_)


TestAnyCalls = AnyCalls.TestCase
TestAnyCalls.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)


# each row of the table


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Recorder]:
    recorder = Recorder(tmp_path / "ledger.db")
    with closing(recorder.ledger):
        yield recorder


def reach(made: Recorder, state: StateType, back_to: StateType) -> None:
    """Bring the first machine into a state; an ended one is over in the state ``back_to``."""
    one = IDS[0]
    if state in (Lost, Ended):
        reach(made, back_to, back_to)
        made.record_end(one)
        return
    made.launched(one)
    if state is Serving:
        made.record_registration(one)
    elif state is Ending:
        made.record_ending(one)
    elif state in (Stopping, Stopped):
        made.record_stopping(one)
        if state is Stopped:
            made.record_stopped(one)


def follow(made: Recorder, row: Transition, before: StateType | None) -> None:
    """The call of this row."""
    one, over = IDS[0], row.after in (Lost, Ended)
    if row.call is LedgerCall.LAUNCHED:
        made.launched(one, InstanceState.TERMINATED if over else InstanceState.PENDING)
    elif row.call in (LedgerCall.ADOPT, LedgerCall.OBSERVE):
        shown = InstanceState.TERMINATED if over else InstanceState.RUNNING
        if before is Ended and row.after in (Stopping, Stopped):
            shown = InstanceState.STOPPED
        made.adopt(one, shown) if row.call is LedgerCall.ADOPT else made.observe({one: shown})
    else:
        getattr(made, row.call)(one)


@pytest.mark.parametrize(
    ("row", "before"),
    [(row, before) for row in TRANSITIONS for before in row.before or (None,)],
    ids=lambda value: (
        value.call if isinstance(value, Transition) else getattr(value, "__name__", "new")
    ),
)
def test_each_row_of_the_table_happens(
    made: Recorder, row: Transition, before: StateType | None
) -> None:
    if before is not None:
        reach(made, before, row.after)
        assert type(made.machines()[IDS[0]].life) is before
    follow(made, row, before)
    assert (row.call, before, row.after) in made.used


def test_each_call_is_a_method_of_the_ledger() -> None:
    assert {row.call for row in TRANSITIONS} == set(LedgerCall)
    assert all(hasattr(Machines, call) or hasattr(StopRows, call) for call in LedgerCall)


def test_the_page_has_the_same_table() -> None:
    shown = set()
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip().replace("`", "") for cell in line.strip("|").split("|")]
        if len(cells) == 4 and cells[0] not in ("call", "---"):
            calls, before, after, writes = cells
            shown |= {(call, before, after, writes) for call in calls.split(", ")}
    names = {
        (
            str(row.call),
            ", ".join(kind.__name__ for kind in row.before) or "(not known)",
            row.after.__name__ + " *" * row.begins_part,
            ", ".join(row.writes),
        )
        for row in TRANSITIONS
    }
    assert shown == names


# the conditions in SQL


def holds(condition: str, columns: Columns) -> bool:
    named = ", ".join(f"? as {name}" for name in Columns._fields)
    with closing(sqlite3.connect(":memory:")) as db:
        values = columns._replace(cause=columns.cause and "{}")
        (found,) = db.execute(f"select {condition} from (select {named})", values).fetchone()
    return bool(found)


@pytest.mark.parametrize("chosen", list(itertools.product((False, True), repeat=6)))
def test_sql_and_values_agree_on_every_row(chosen: tuple[bool, ...]) -> None:
    values = (T0 + 1, T0 + 2, Quoted(text="idle"), T0 + 3, T0 + 4, T0 + 5)
    columns = Columns(*(v if c else None for v, c in zip(values, chosen, strict=True)))
    state: MachineState = state_of(**columns._asdict())
    assert [kind for kind, sql in CONDITIONS.items() if holds(sql, columns)] == [type(state)]
    machine = Machine(instance=instance("i-1"), pool="burst", life=state)
    assert holds(table.PAID, columns) == (not machine.has_ended)
    assert holds(table.OFF, columns) == machine.is_off == (not holds(table.NOT_OFF, columns))
    assert holds(table.NOT_RETIRED, columns) == (machine.retired_at is None)
    life = state.before if isinstance(state, Ended) else state
    assert holds(table.KEPT, columns) == isinstance(life, Stopping | Stopped)
    for call in LedgerCall:
        allowed = any(type(state) in row.before for row in TRANSITIONS if row.call is call)
        if call is not LedgerCall.LAUNCHED:
            assert holds(table.where_allowed(call), columns) == allowed
