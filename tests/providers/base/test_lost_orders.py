"""Orders that go wrong in any way, with lists that lag for up to a minute and processes that end at
any time: no node ever has two machines, and in the end each has one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct
from msgspec.structs import replace
from providers.base.in_process import AFTER, BEFORE, CLOUDS, Cloud

from slurm_elastic.base.errors import TransientError, UnsettledError
from slurm_elastic.config.clouds import LISTING_LAG
from slurm_elastic.model.cluster import Instance, LaunchSpec
from slurm_elastic.model.protocols import Provider
from slurm_elastic.testing.contract import spec_for

GENERATION = "g1795000000000-0a1b2c3d"
NODES = 3

Serving = Callable[[float], AbstractContextManager[Any]]


@pytest.fixture(params=CLOUDS)
def serving(request: pytest.FixtureRequest) -> Serving:
    return CLOUDS[request.param]


@pytest.fixture
def cloud(serving: Serving) -> Iterator[Cloud]:
    """One whose lists lag as long as is reckoned with."""
    with serving(LISTING_LAG) as made:
        yield made


class Step(Struct, frozen=True):
    """A launch after ``wait`` s, by a new process after ``restart``, of which so many orders
    fail.
    """

    wait: float
    fault: str | None
    orders: int
    restart: bool


WAITS = st.sampled_from([0.0, 0.5, 10.0, 30.0, 59.0, 60.0, 61.0, 200.0])
STEPS = st.builds(
    Step,
    wait=WAITS,
    fault=st.none() | st.sampled_from((*BEFORE, *AFTER)),
    orders=st.integers(1, NODES),
    restart=st.booleans(),
)


class Caller:
    """Repeats one launch as the daemon does: a repetition says that it is one after a restart, or
    as a later round does; what answered is not asked again.
    """

    def __init__(self, cloud: Cloud) -> None:
        self.cloud = cloud
        self.provider = cloud.open()
        self.spec = spec_for(
            cloud, self.provider, NODES, generation=GENERATION  # type: ignore[arg-type]
        )  # fmt: skip
        self.answer: tuple[Instance, ...] = ()

    def take(self, step: Step, *, again: bool) -> None:
        self.cloud.clock.sleep(step.wait)
        if step.restart:
            self.provider = self.cloud.open()
            self.spec = replace(self.spec, is_repeated=True)
        if step.fault:
            self.cloud.fail_next(step.fault, step.orders)
        self.launch(again=again)
        self.cloud.heal()

    def launch(self, *, again: bool) -> None:
        try:
            spec = self.spec if not again else replace(self.spec, is_repeated=True)
            self.answer = tuple(self.provider.launch(spec))
        except TransientError:
            self.answer = ()
        made = self.cloud.made()
        assert len(set(made)) == len(made), "no node has two machines"


@pytest.mark.parametrize("kind", CLOUDS)
@settings(max_examples=60, deadline=None)
@given(
    steps=st.lists(STEPS, min_size=1, max_size=6),
    lag=st.sampled_from([0.0, 30.0, 60.0, 60.0]),
)
def test_no_node_ever_has_two_machines_and_each_gets_one(
    kind: str, steps: list[Step], lag: float
) -> None:
    with CLOUDS[kind](lag) as cloud:
        caller = Caller(cloud)
        for number, step in enumerate(steps):
            caller.take(step, again=number > 1)
        for _ in range(3):  # what is to show, the order, and what came of it
            cloud.clock.sleep(LISTING_LAG)
            caller.launch(again=True)
        assert tuple(i.node for i in caller.answer) == caller.spec.nodes
        assert sorted(cloud.made()) == sorted(caller.spec.nodes)


def launched(cloud: Cloud, fault: str, orders: int = NODES) -> tuple[Provider, LaunchSpec]:
    """A launch whose orders end so; what it raises says that nobody knows."""
    provider = cloud.open()
    spec = spec_for(cloud, provider, NODES, generation=GENERATION)  # type: ignore[arg-type]
    cloud.fail_next(fault, orders)
    with pytest.raises(TransientError):
        provider.launch(spec)
    cloud.heal()
    return provider, spec


@pytest.mark.parametrize("fault", AFTER)
def test_a_launch_that_may_have_taken_effect_waits_for_the_lists(cloud: Cloud, fault: str) -> None:
    provider, spec = launched(cloud, fault)
    for _ in range(3):
        cloud.clock.sleep(LISTING_LAG / 4)
        with pytest.raises(UnsettledError, match="lists may lack them yet"):
            provider.launch(spec)
    cloud.clock.sleep(LISTING_LAG / 4)
    assert len(provider.launch(spec)) == len(cloud.made()) == NODES


@pytest.mark.parametrize("fault", AFTER)
def test_lists_that_show_it_end_the_wait_at_once(serving: Serving, fault: str) -> None:
    with serving(0.0) as cloud:
        provider, spec = launched(cloud, fault)
        assert len(provider.launch(spec)) == len(cloud.made()) == NODES


@pytest.mark.parametrize("fault", ["reset before", "internal"])
def test_what_never_arrived_is_ordered_when_that_must_have_shown(cloud: Cloud, fault: str) -> None:
    provider, spec = launched(cloud, fault)
    cloud.clock.sleep(LISTING_LAG - 1)
    with pytest.raises(UnsettledError):
        provider.launch(spec)
    assert cloud.made() == []
    cloud.clock.sleep(1)
    cloud_answers_or_not(provider, spec)
    assert len(cloud.made()) == NODES


def cloud_answers_or_not(provider: Provider, spec: LaunchSpec) -> None:
    """nova's order is only answered by the lists, which lag."""
    try:
        provider.launch(spec)
    except TransientError as error:
        assert error.code == "NotListed"  # noqa: PT017


def test_a_refused_order_is_repeated_at_once(serving: Serving) -> None:
    with serving(0.0) as cloud:
        provider, spec = launched(cloud, "unavailable")
        assert cloud.made() == []
        assert len(provider.launch(spec)) == NODES


def test_a_process_that_starts_believes_no_list_about_an_earlier_ones_launch(cloud: Cloud) -> None:
    _, spec = launched(cloud, "reset after")
    cloud.clock.sleep(1)
    provider = cloud.open()
    with pytest.raises(UnsettledError):
        provider.launch(replace(spec, is_repeated=True))
    cloud.clock.sleep(LISTING_LAG)
    assert len(provider.launch(replace(spec, is_repeated=True))) == len(cloud.made()) == NODES


def test_an_order_that_was_answered_is_not_given_again_either(cloud: Cloud) -> None:
    """The answer came, the ledger could not be written, and the lists lag."""
    provider = cloud.open()
    spec = spec_for(cloud, provider, NODES, generation=GENERATION)  # type: ignore[arg-type]
    cloud_answers_or_not(provider, spec)
    with pytest.raises(UnsettledError):
        provider.launch(replace(spec, is_repeated=True))
    cloud.clock.sleep(LISTING_LAG)
    assert len(provider.launch(replace(spec, is_repeated=True))) == len(cloud.made()) == NODES
