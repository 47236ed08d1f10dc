"""All screens give one answer to "why does my job wait?", in situations drawn at random.

The note on the job, ``mine``, ``status``, ``explain``, ``price`` and ``doctor`` read the same ledger
and the same Slurm, each in its own way.
"""

from __future__ import annotations

import contextlib
import itertools
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from status_cases import config

from slurm_elastic.cli.jobs import explain, price, why_not
from slurm_elastic.cli.operate.status import kept_of
from slurm_elastic.config import Config, SlurmSettings
from slurm_elastic.config.sections.policies import PayerBudget, SitePolicies
from slurm_elastic.controller.context import Site
from slurm_elastic.features.waits.wait_texts import WaitTexts
from slurm_elastic.model.causes import Quoted
from slurm_elastic.model.causes.holds import GrowthStartsIt
from slurm_elastic.model.cluster import Limits
from slurm_elastic.model.directive import Directive, LimitChange, Pause
from slurm_elastic.model.exclusion import (
    BREAKER,
    CAPACITY,
    COOL_DOWN,
    OPERATOR,
    POLICY,
    Exclusion,
)
from slurm_elastic.model.memory import Purchase, UnhelpedJob
from slurm_elastic.model.slurm import Reservation, SlurmJob, SlurmNode
from slurm_elastic.policies.nodes.node_reasons import HOLD_MARK
from slurm_elastic.policies.waits import wait_note
from slurm_elastic.slurm.client.fake import FakeSlurm
from slurm_elastic.state.ledger import Ledger
from slurm_elastic.watch.doctor import kept as doctor
from slurm_elastic.watch.door import own_jobs
from slurm_elastic.watch.door.client import chain_of
from slurm_elastic.watch.door.questions import ChainAsk, OwnJobsAsk
from slurm_elastic.watch.door.records import read_facts
from slurm_elastic.watch.door.visibility import Viewer, seen_facts
from slurm_elastic.watch.view import own_job_rows, status_view
from tests.chaos.defects import screens

NOW = 1_800_000_000.0
UID = 65534
DRAWN = st.randoms(use_true_random=True)
POOLS = {"rack": ("op1", "op2"), "general": tuple(f"pub{n}" for n in range(1, 9))}
CLOUDS = {"rack": "onprem", "general": "aws"}
OURS = frozenset({"bound", "unhelped", "health"})
LASTING = frozenset({"time", "size", "features", "gres", "cpus", "memory"})
HOLDS = {"sold out": CAPACITY, "by order": OPERATOR, "outside its hours": POLICY}

OFF, BUSY = ("IDLE", "CLOUD", "POWERED_DOWN"), ("ALLOCATED", "CLOUD")
NODE_STATES = (
    OFF, OFF, BUSY, BUSY, ("IDLE", "CLOUD"), ("DOWN", "CLOUD"), ("IDLE", "CLOUD", "DRAIN"),
    ("MIXED", "CLOUD", "DRAIN"),
)  # fmt: skip
REASONS = (
    "Dependency", "JobHeldUser", "PartitionConfig", "PartitionNodeLimit", "AccountNotAllowed",
    "QOSMaxCpuPerUserLimit", "ReqNodeNotAvail", "BadConstraints", "launch failed requeued held",
    "PartitionTimeLimit", "BeginTime",
)  # fmt: skip
T = TypeVar("T")


class Chance:
    """Draws plain values mostly, and special values sometimes. Hypothesis would draw its special
    values so often that nearly no job waits for a machine alone.
    """

    def __init__(self, random: Random) -> None:
        self._random = random

    def one_of(self, values: Sequence[T]) -> T:
        return self._random.choice(values)

    def mostly(self, plain: T, others: Sequence[T], share: float = 0.15) -> T:
        return self.one_of(others) if self._random.random() < share else plain

    def some_of(self, values: Sequence[T], shares: Sequence[float] = (0.5, 0.35, 0.15)) -> list[T]:
        """Draw none, one or two of them."""
        (count,) = self._random.choices(range(3), shares)
        return self._random.sample(values, min(count, len(values)))


def job_of(chance: Chance, number: int) -> SlurmJob:
    restarts = chance.mostly(0, (1,))
    begin = chance.mostly(NOW - 3600, (NOW + 100,), 0.5) if restarts else NOW - 3600
    is_array = chance.one_of((True, False))
    return SlurmJob(
        id=number, states=frozenset({"PENDING"}), user=chance.one_of(("ann", "ben")), uid=UID,
        account=chance.mostly("physics", ("arts", "")), restarts=restarts,
        partitions=chance.one_of((
            ("burst",), ("burst",), ("onprem",), ("onprem", "burst"), ("batch", "burst"),
            ("batch", "onprem", "burst"), ("batch",),
        )),
        reason=chance.mostly(chance.one_of(("Resources", "Priority", "None")), REASONS, 0.25),
        submit=NOW - 3600, eligible=begin, start=begin,
        node_count=chance.one_of((1, 1, 2, 3)) if chance.mostly(True, (False,)) else 9,
        cpus=chance.mostly(1, (4, 24)), limit=chance.mostly(600, (None, 90_000)),
        requeue=chance.mostly(True, (False,)), features=chance.mostly("", ("vax", "aws")),
        gres=chance.mostly("", ("gpu:1",), 0.05),
        node_memory=chance.mostly(0, (64_000,), 0.05), qos=chance.mostly("", ("high",)),
        array=number if is_array else 0, task_list="3-6" if is_array else "",
        tasks=4 if is_array else 1,
    )  # fmt: skip


class Drawn(NamedTuple):
    """A site and its queue. ``holds``: by pool, the cause for which its nodes are held.
    ``hidden``: the words of PrivateData.
    """

    jobs: Sequence[SlurmJob]
    states: Mapping[str, Sequence[tuple[str, ...]]]
    holds: Mapping[str, str]
    orders: Sequence[Pause | LimitChange]
    exclusions: Sequence[Exclusion]
    unhelped: Sequence[int]
    limits: Limits
    budgets: Mapping[str, PayerBudget]
    partitions: Mapping[str, str]
    reserved: Sequence[str]
    hidden: str


ORDERS = (
    Pause(scope="pool:general"), Pause(scope="cloud:aws"), Pause(scope="pool:rack"),
    Pause(scope=""), LimitChange(scope="", key="nodes", value=1),
    LimitChange(scope="cloud:aws", key="nodes", value=1),
    LimitChange(scope="cloud:aws", key="nodes", value=40),
    LimitChange(scope="cloud:aws", key="dollars_per_hour", value=0.0),
)  # fmt: skip
EXCLUSIONS = (
    Exclusion(kind=BREAKER, scope="general", count=3, until=NOW + 300, cause=Quoted(text="x")),
    Exclusion(kind=COOL_DOWN, scope="aws/*/*/*/general", code="ICE", until=NOW + 300,
        cause=Quoted(text="none left")),
    Exclusion(kind=COOL_DOWN, scope="aws/spot/*/*", code="quota", until=NOW + 300,
        cause=Quoted(text="too many")),
)  # fmt: skip
LIMITS = (Limits(nodes=1), Limits(nodes=2, dollars_per_hour=5.0), Limits(dollars_per_hour=0.2))


def drawing(chance: Chance) -> Drawn:
    count = chance.one_of((1, 2, 3))
    states = {
        pool: chance.one_of((
            [OFF] * len(nodes), [BUSY] * len(nodes), [chance.one_of(NODE_STATES) for _ in nodes],
        ))
        for pool, nodes in POOLS.items()
    }  # fmt: skip
    causes = (*HOLDS, "sold out", str(GrowthStartsIt()))
    return Drawn(
        jobs=[job_of(chance, number) for number in range(1, count + 1)],
        states=states,
        holds={pool: chance.one_of(causes) for pool in chance.some_of(tuple(POOLS))},
        orders=chance.some_of(ORDERS),
        exclusions=chance.some_of(EXCLUSIONS),
        unhelped=chance.mostly([], [[1]], 0.3),
        limits=chance.mostly(Limits(), LIMITS, 0.4),
        budgets=chance.mostly({}, ({"physics": PayerBudget(per_day=0.0)},)),
        partitions=chance.mostly({}, ({"burst": "DRAIN"}, {"burst": "INACTIVE"}), 0.1),
        reserved=chance.mostly((), (POOLS["general"], POOLS["general"][:4]), 0.2),
        hidden=chance.mostly("", ("nodes", "usage", "jobs"), 0.25),
    )  # fmt: skip


class Screens:
    """The screens of one situation."""

    def __init__(self, place: Path, drawn: Drawn) -> None:
        place.mkdir(parents=True)
        conf = place / "slurm.conf"
        conf.write_text(f"ClusterName=alps\nPrivateData={drawn.hidden or 'events'}\n")
        plain = config(place)
        self.config: Config = replace(
            plain, slurm=SlurmSettings(conf=str(conf)), limits=drawn.limits,
            policies=SitePolicies(account_budgets=dict(drawn.budgets)),
        )  # fmt: skip
        self.drawn, self.jobs = drawn, list(drawn.jobs)
        self.slurm = self._slurm()
        self.ledger = Ledger(place / "ledger.db")
        self._write()

    def close(self) -> None:
        self.ledger.close()

    def _nodes(self) -> Iterator[SlurmNode]:
        for pool, names in POOLS.items():
            cause = self.drawn.holds.get(pool)
            for name, words in zip(names, self.drawn.states[pool], strict=True):
                states, reason = frozenset(words), "bad fan" if "DRAIN" in words else ""
                if cause is not None and "POWERED_DOWN" in words:
                    states, reason = states | {"DRAIN"}, f"{HOLD_MARK}{cause}"
                yield SlurmNode(name=name, states=states, reason=reason, cpus=4, memory=8192)

    def _slurm(self) -> FakeSlurm:
        slurm = FakeSlurm([*self._nodes(), SlurmNode(name="st1", states=frozenset({"ALLOCATED"}))],
                          self.jobs)  # fmt: skip
        slurm.partitions = dict(self.drawn.partitions)
        if self.drawn.reserved:
            slurm.reserved = [
                Reservation(name="fut", start=NOW + 300, end=NOW + 9000, nodes=tuple(self.drawn.reserved))
            ]  # fmt: skip
        return slurm

    def _write(self) -> None:
        for word in self.drawn.orders:
            order = Directive(word=word, who="alice", since=NOW - 60, starts=NOW - 60, reason="why")
            self.ledger.directives.give(order)
        exclusions = [*self.drawn.exclusions]
        for node in self._nodes():
            pool = "rack" if node.name.startswith("op") else "general"
            if node.reason.startswith(HOLD_MARK):
                text = self.drawn.holds[pool]
                kind, cause = HOLDS.get(text, POLICY), Quoted(text=text)
                exclusions.append(Exclusion(
                    kind=kind, scope=node.name, pool=pool, until=NOW + 300,
                    cause=cause if text in HOLDS else GrowthStartsIt(),
                ))  # fmt: skip
        if exclusions:
            self.ledger.exclusions.add(*exclusions)
        if self.drawn.unhelped:
            bought = Purchase(
                first_node="pub1", at=NOW - 500, open=frozenset(), came_up={},
                unused=frozenset({"pub1"}), jobs={},
            )  # fmt: skip
            rows = [
                UnhelpedJob(job=number, asks="x", since=NOW - 100, nodes=("pub1",), reason="None")
                for number in self.drawn.unhelped
            ]
            self.ledger.growth_guard.judge(bought, rows)

    def notes(self) -> dict[int, str]:
        site = Site.of(self.config, self.slurm, self.ledger, {}, lambda: NOW)
        return dict(WaitTexts(site).of(self.slurm.jobs()))

    def mine(self, viewer: Viewer | None) -> dict[int, own_job_rows.OwnJob]:
        ask = OwnJobsAsk(since=0.0, everyone=viewer is None)
        subject = own_jobs.subject_of(ask, UID, "nobody", viewer)
        reading = own_jobs.slurm_reading(self.config, self.slurm, NOW, subject=subject)
        facts = read_facts(self.config, NOW)
        seen = facts if viewer is None else seen_facts(facts, viewer)
        own = own_jobs.narrowed(reading, seen, subject)
        rows = own_jobs.read_own_jobs(self.config, ask, subject, *own).jobs
        return {row.id: row for row in rows}


def disagreements(screens: Screens) -> Iterator[str]:
    """Yield each sentence in which two screens differ."""
    notes = screens.notes()
    if screens.drawn.hidden:
        viewer = Viewer.of(UID, {screens.drawn.hidden}, screens.jobs)
        rows = screens.mine(viewer)
        for job in screens.jobs:
            yield from _of_note(job.id, notes.get(job.id, ""), rows[job.id].reason)
        return
    rows, facts = screens.mine(None), read_facts(screens.config, NOW)
    slurm = screens.slurm
    facts = replace(
        facts, nodes=slurm.nodes(), jobs=slurm.jobs(), reservations=slurm.reservations(),
        partition_states=slurm.partition_states(),
    )  # fmt: skip
    view = status_view(screens.config, facts)
    assert view.queue is not None
    shown = {row.id: row for row in view.queue.jobs}
    for job in screens.jobs:
        explained = explain.explain(screens.config, slurm, str(job.id))
        yield from _of_job(
            screens, job, notes.get(job.id, ""), rows[job.id], shown[job.id], explained
        )
    _, by_doctor = doctor.examine(screens.config, slurm, NOW)
    by_status = sum(row.count for row in view.kept if row.kind == "job" and row.stuck)
    if by_doctor != by_status:
        yield f"{by_doctor} jobs are stuck by doctor, {by_status} by status"
    by_mine = sum(row.tasks for row in rows.values() if row.stuck)
    by_kept = sum(row.count for row in view.kept if row.kind == "job")
    if by_mine != by_kept:
        yield f"{by_mine} jobs do not start by themselves by mine, {by_kept} by status"


def _of_note(job: int, note: str, reason: str) -> Iterator[str]:
    text = note.partition("; next try ")[0]
    if text and not reason.endswith(text):
        yield f"job {job}: its note is {note!r}, mine says {reason!r}"
    is_ours = any(f"{cloud}: " in reason or f"{cloud} (" in reason for cloud in CLOUDS.values())
    is_elsewhere = any(words in reason for words in ("can hold it", "no other cloud takes it"))
    if not text and is_ours and not is_elsewhere and "can never start" not in reason:
        yield f"job {job}: it has no note, mine says {reason!r}"


def _of_job(
    screens: Screens, job: SlurmJob, note: str, row: Any, shown: Any, explained: Any
) -> Iterator[str]:
    yield from _of_note(job.id, note, row.reason)
    told = [text for text in explained.attention if text.startswith(f"Job {job.label} ")]
    if not row.stuck == shown.stuck == bool(told):
        yield f"job {job.id}: stuck by mine {row.stuck}, status {shown.stuck}, explain {told}"
    if row.stuck:
        sentence = f"Job {job.label} {row.reason}"
        if told and told[0] != (f"{sentence}; do: {row.advice}" if row.advice else sentence):
            yield f"job {job.id}: explain says {told}, mine {row.reason!r}, {row.advice!r}"
        if shown.why or note:
            yield f"job {job.id} is stuck, and waits for {shown.why!r} by status, by note {note!r}"
        return
    listed = [
        verdict for verdict in explained.verdicts
        if screens.config.cloud(verdict.cloud).partition_name in job.partitions
    ]  # fmt: skip
    fitting = [verdict for verdict in listed if verdict.predicate not in LASTING]
    waits_for_us = any(verdict.predicate in OURS for verdict in fitting) and all(
        verdict.predicate in OURS | {"in use", "reserved", "partition state"} for verdict in fitting
    )
    if waits_for_us != bool(shown.why):
        yield f"job {job.id}: explain says {listed}, status {shown.why!r}"
    for verdict in fitting if waits_for_us else ():
        if verdict.predicate in OURS and not all(
            verdict.reason in text for text in (row.reason, shown.why, note)
        ):
            yield f"job {job.id}: {verdict} by explain, {row.reason!r}, {shown.why!r}, {note!r}"
    yield from _of_price(screens, job, fitting)


def _of_price(screens: Screens, job: SlurmJob, fitting: Sequence[Any]) -> Iterator[str]:
    """What ``price`` would say of the same job before its submission."""
    chain = chain_of(screens.config, ChainAsk(about="job", name="0"), NOW)
    waits = why_not.waits_now(screens.config, job, chain, kept_of(screens.slurm, NOW))
    closed = {(row.pool, row.reason) for row in price.closed_pools(waits.of_all_pools(job), chain)}
    by_explain = {(v.pool, v.reason) for v in fitting if v.predicate in price.CLOSED}
    if closed != by_explain:
        yield f"job {job.id}: price names {closed}, explain {by_explain}"


@pytest.fixture
def compare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Draw so many situations, and fail at the first one in which two screens differ."""
    monkeypatch.setattr(explain, "time", SimpleNamespace(time=lambda: NOW))
    monkeypatch.setattr(own_jobs, "FORECASTS_FOR_S", -1.0)
    monkeypatch.setattr(wait_note, "MAX_LENGTH", 1 << 20)  # a note has less room than a screen
    numbers = itertools.count()

    def look(random: Random) -> None:
        drawn = drawing(Chance(random))
        place = tmp_path / str(next(numbers))
        with contextlib.closing(Screens(place, drawn)) as shown:
            assert list(disagreements(shown)) == []
        shutil.rmtree(place)

    return lambda count: settings(max_examples=count)(given(DRAWN)(look))()


@pytest.mark.parametrize("count", [300, pytest.param(10_000, marks=pytest.mark.release)])
def test_all_screens_say_the_same_of_a_job_that_waits(compare: Any, count: int) -> None:
    compare(count)


def test_a_screen_that_judges_for_itself_is_found(
    compare: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_job_rows, "own_job_rows", own_job_rows.own_job_rows)
    monkeypatch.setattr(own_jobs, "own_job_rows", own_jobs.own_job_rows)
    screens.own_jobs_are_judged_by_holds_alone(None)
    with pytest.raises(AssertionError):
        compare(1000)
