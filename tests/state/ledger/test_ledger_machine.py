"""The ledger as a state machine: a daemon that may crash between any two steps of its work."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from ledger_cases import T0, instance, spec
from msgspec.structs import replace

from slurm_elastic.model.causes import Quoted
from slurm_elastic.model.cluster import Instance, InstanceState, LaunchSpec
from slurm_elastic.model.launch_states import Done
from slurm_elastic.state.ledger import Launch, Ledger, Machine

LIVE = (InstanceState.PENDING, InstanceState.RUNNING)


class Cloud:
    """The machines of a cloud; idempotent by generation, as the Provider contract has it."""

    def __init__(self) -> None:
        self.machines: dict[str, Instance] = {}
        self.answers: dict[str, list[str]] = {}

    def launch(self, ask: LaunchSpec, count: int, now: float) -> list[Instance]:
        if ask.generation not in self.answers:
            made = [
                instance(f"i-{ask.generation}-{n}", node, ask.generation, launched=now)
                for n, node in enumerate(ask.nodes[:count])
            ]
            self.machines |= {i.id: i for i in made}
            self.answers[ask.generation] = [i.id for i in made]
        return [self.machines[i] for i in self.answers[ask.generation]]

    def terminate(self, id_: str) -> None:
        self.machines[id_] = replace(self.machines[id_], state=InstanceState.TERMINATED)

    def live(self) -> list[Instance]:
        return [i for i in self.machines.values() if i.state in LIVE]


class CrashingDaemon(RuleBasedStateMachine):
    """Each rule is one step; ``crash`` may come between any two and forgets all but the file."""

    def __init__(self) -> None:
        super().__init__()
        self._dir = tempfile.TemporaryDirectory()
        self.path = Path(self._dir.name) / "ledger.db"
        self.ledger = Ledger(self.path)
        self.cloud = Cloud()
        self.now = T0
        self.count = 0
        self.launching: LaunchSpec | None = None
        self.answer: list[Instance] | None = None
        self.terminating: list[str] = []

    def teardown(self) -> None:
        self.ledger.close()
        self._dir.cleanup()

    def tick(self) -> float:
        self.now += 1
        return self.now

    # a launch, step by step

    @precondition(lambda self: self.launching is None)
    @rule(nodes=st.integers(1, 3))
    def intend(self, nodes: int) -> None:
        self.count += 1
        names = tuple(f"pub{n}" for n in range(1, nodes + 1))
        self.launching = spec(f"g{self.count}", names)
        self.ledger.launches.record_intent(self.launching, "r", self.tick())

    @precondition(lambda self: self.launching is not None and self.answer is None)
    @rule(count=st.integers(0, 3))
    def call(self, count: int) -> None:
        self.answer = self.cloud.launch(self.launching, count, self.tick())

    @precondition(lambda self: self.launching is not None and self.answer is None)
    @rule()
    def refused(self) -> None:
        if self.launching.generation not in self.cloud.answers:
            self.ledger.launches.record_failure(
                self.launching.generation, "no capacity", self.tick()
            )
            self.launching = None

    @precondition(lambda self: self.answer is not None)
    @rule(twice=st.booleans())
    def keep(self, twice: bool) -> None:
        for _ in range(2 if twice else 1):
            self.ledger.machines.record_launch(self.launching.generation, self.answer, self.tick())
        self.launching = self.answer = None

    # a suspend, step by step

    @precondition(lambda self: not self.terminating)
    @rule(data=st.data())
    def decide_to_suspend(self, data: st.DataObject) -> None:
        known = [m.instance.id for m in self.ledger.machines.live() if m.is_wanted]
        if known:
            self.terminating = data.draw(st.lists(st.sampled_from(known), min_size=1, unique=True))
            self.ledger.machines.record_ending(
                "aws", self.terminating, Quoted(text="idle"), self.tick()
            )

    @precondition(lambda self: self.terminating)
    @rule()
    def terminate(self) -> None:
        for id_ in self.terminating:
            self.cloud.terminate(id_)

    @precondition(lambda self: self.terminating)
    @rule()
    def note_the_end(self) -> None:
        gone = [i for i in self.terminating if self.cloud.machines[i].state not in LIVE]
        self.ledger.machines.record_end("aws", gone, Quoted(text="terminated"), self.tick())
        self.terminating = []

    # what goes on beside

    @rule()
    def spot_reclaim(self) -> None:
        if self.cloud.live():
            self.cloud.terminate(self.cloud.live()[0].id)

    @rule()
    def boot(self) -> None:
        for i in self.cloud.live():
            self.cloud.machines[i.id] = replace(i, state=InstanceState.RUNNING, address="10.0.0.1")

    @rule(missing=st.booleans())
    def reconcile(self, missing: bool) -> None:
        began = self.tick()
        seen = [] if missing else list(self.cloud.machines.values())
        self.ledger.machines.observe("aws", seen, began)

    @rule()
    def crash(self) -> None:
        before = self.remembered()
        self.ledger.close()
        self.launching = self.answer = None
        self.terminating = []
        self.ledger = Ledger(self.path)
        assert self.remembered() == before, "the reopened ledger is what was committed"
        self.recover()

    def recover(self) -> None:
        """Make the same call again for open intents, by its token, as a restarted daemon does."""
        for launch in self.ledger.launches.open():
            again = self.cloud.launch(spec(launch.generation, launch.nodes), 3, self.tick())
            self.ledger.machines.record_launch(launch.generation, again, self.tick())

    def remembered(self) -> tuple[tuple[Launch, ...], tuple[Machine, ...]]:
        return self.launches(), self.ledger.machines.live(ended_since=0)

    def launches(self) -> tuple[Launch, ...]:
        found = (self.ledger.launches.get(f"g{n}") for n in range(1, self.count + 1))
        return tuple(launch for launch in found if launch is not None)

    # what must hold after every step

    @invariant()
    def every_live_machine_can_be_found(self) -> None:
        known = {m.instance.id for m in self.ledger.machines.live()}
        intents = {launch.generation for launch in self.ledger.launches.open()}
        lost = [i for i in self.cloud.live() if i.id not in known and i.generation not in intents]
        assert lost == []

    @invariant()
    def no_machine_twice_and_none_invented(self) -> None:
        ids = [m.instance.id for m in self.ledger.machines.live(ended_since=0)]
        assert len(ids) == len(set(ids))
        assert set(ids) <= set(self.cloud.machines)

    @invariant()
    def what_ended_in_the_ledger_ended_in_the_cloud(self) -> None:
        ended = [m.instance.id for m in self.ledger.machines.live(ended_since=0) if m.has_ended]
        assert all(self.cloud.machines[i].state not in LIVE for i in ended)

    @invariant()
    def done_launches_hold_all_the_cloud_gave(self) -> None:
        by_id = {m.instance.id for m in self.ledger.machines.live(ended_since=0)}
        for launch in self.launches():
            if isinstance(launch.state, Done):
                assert by_id.issuperset(self.cloud.answers[launch.generation])


TestCrashingDaemon = CrashingDaemon.TestCase
TestCrashingDaemon.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
