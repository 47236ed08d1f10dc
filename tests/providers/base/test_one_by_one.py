"""Machines that are ordered one a call: none twice, none forgotten, and what a refusal stands
for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from slurm_elastic.base.errors import (
    AuthError,
    CapacityError,
    InstanceNotFound,
    ProviderError,
    TransientError,
    UnsettledError,
)
from slurm_elastic.model.cluster import (
    Instance,
    InstanceState,
    LaunchSpec,
    Location,
    Market,
    Offer,
    Pool,
)
from slurm_elastic.providers.base.one_by_one import LAUNCH_REMEMBERED_S, OneByOne
from slurm_elastic.providers.base.statuses import THROTTLED

LAG = 60.0
NODES = ("n1", "n2", "n3")
FULL = CapacityError("c", "Full", "no room")
LOST = TransientError("c", "Timeout", "no answer")


class Cloud:
    """Makes machines, unless it is to say something else for a node; ``lists`` what it shows."""

    def __init__(self, lag: float = LAG, **how: Any) -> None:
        self.now = 1000.0
        self.calls = OneByOne("c", lag, lambda: self.now, **how)
        self.now += 10_000
        self.ordered: list[str] = []
        self.wrong: dict[str, Exception] = {}
        self.lists: list[Instance] = []

    def make(self, spec: LaunchSpec, node: str) -> Instance:
        self.ordered.append(node)
        if node in self.wrong:
            raise self.wrong[node]
        return machine(node, spec.generation)

    def launch(self, *nodes: str, generation: str = "g1", again: bool = False) -> list[str]:
        spec = spec_for(nodes or NODES, generation, again=again)
        return [one.node for one in self.calls.launch(spec, self.lists, self.make)]


def machine(node: str, generation: str = "g1", **fields: Any) -> Instance:
    return Instance(
        id=f"{node}-{generation}", cloud="c", node=node, generation=generation,
        instance_type="t", zone="z", market=Market.ON_DEMAND, price=0.1, launched=1.0,
        address=None, **({"state": InstanceState.PENDING} | fields),
    )  # fmt: skip


def spec_for(nodes: tuple[str, ...], generation: str, *, again: bool = False) -> LaunchSpec:
    offer = Offer(
        cloud="c", location=Location.PUBLIC, instance_type="t", zone="z", market=Market.ON_DEMAND,
        price=0.1, cpus=2, memory=4096,
    )  # fmt: skip
    pool = Pool(name="p", cloud="c", nodes=NODES, cpus=2, real_memory=3000)
    return LaunchSpec(generation=generation, pool=pool, nodes=nodes, offer=offer, is_repeated=again)


# launching


def test_each_node_gets_a_machine_and_none_a_second_one() -> None:
    cloud = Cloud()
    assert cloud.launch() == list(NODES)
    assert cloud.ordered == list(NODES)
    assert cloud.launch() == list(NODES), "though no list shows them yet"
    assert cloud.ordered == list(NODES)
    assert cloud.launch("n1", generation="g2") == ["n1"]
    assert cloud.ordered == [*NODES, "n1"]


def test_what_lists_show_is_not_ordered_again_by_a_process_that_knows_nothing() -> None:
    cloud = Cloud()
    cloud.lists = [machine("n2"), machine("n3", "g0")]
    assert cloud.launch() == list(NODES)
    assert cloud.ordered == ["n1", "n3"]


def test_what_a_list_has_shown_once_is_not_ordered_again_when_it_is_gone() -> None:
    cloud = Cloud()
    cloud.lists = [machine("n2")]
    cloud.launch("n2")
    cloud.lists = []
    cloud.now += LAG
    with pytest.raises(CapacityError, match="MachinesGone"):
        cloud.launch("n2")
    assert cloud.ordered == []


def test_a_refusal_ends_the_launch_where_calls_come_one_after_the_other() -> None:
    cloud = Cloud()
    cloud.wrong = {"n2": FULL}
    assert cloud.launch() == ["n1"]
    assert cloud.ordered == ["n1", "n2"]
    cloud.wrong = {}
    assert cloud.launch() == list(NODES), "what was refused may be asked for again"
    assert cloud.ordered == ["n1", "n2", "n2", "n3"]


def test_and_stands_for_none_of_the_others_where_several_run() -> None:
    cloud = Cloud(threads=2)
    cloud.wrong = {"n1": FULL}
    assert cloud.launch() == ["n2", "n3"]
    assert sorted(cloud.ordered) == list(NODES)


def test_without_any_machine_the_first_refusal_is_the_answer() -> None:
    cloud = Cloud(threads=3)
    cloud.wrong = {"n1": FULL, "n2": AuthError("c", "HTTP403", "no"), "n3": FULL}
    with pytest.raises(CapacityError, match="Full"):
        cloud.launch()


def test_one_without_an_answer_puts_all_in_doubt_and_is_not_ordered_again_too_soon() -> None:
    cloud = Cloud()
    cloud.wrong = {"n2": LOST}
    with pytest.raises(TransientError, match="Timeout"):
        cloud.launch()
    assert cloud.ordered == list(NODES), "the others are ordered all the same"
    cloud.wrong = {}
    cloud.now += LAG - 1
    with pytest.raises(UnsettledError):
        cloud.launch()
    assert cloud.ordered == list(NODES)
    cloud.now += 1
    cloud.lists = [machine("n1"), machine("n3")]
    assert cloud.launch() == list(NODES)
    assert cloud.ordered == [*NODES, "n2"]


def test_a_doubt_counts_before_a_refusal() -> None:
    cloud = Cloud(threads=3)
    cloud.wrong = {"n1": FULL, "n2": LOST}
    with pytest.raises(TransientError, match="Timeout"):
        cloud.launch()


def test_a_throttled_order_had_no_effect() -> None:
    cloud = Cloud()
    cloud.wrong = {"n1": TransientError("c", THROTTLED, "slow down")}
    with pytest.raises(TransientError, match=THROTTLED):
        cloud.launch("n1")
    cloud.wrong = {}
    assert cloud.launch("n1") == ["n1"], "at once"


def test_the_cloud_may_say_what_had_no_effect() -> None:
    cloud = Cloud(is_refusal=lambda error: error.code == "Timeout")
    cloud.wrong = {"n1": LOST}
    with pytest.raises(TransientError):
        cloud.launch("n1")
    cloud.wrong = {}
    assert cloud.launch("n1") == ["n1"]


def test_an_error_of_ours_is_one_and_the_order_is_in_doubt() -> None:
    cloud = Cloud()
    cloud.wrong = {"n1": KeyError("id")}
    with pytest.raises(KeyError):
        cloud.launch("n1")
    with pytest.raises(UnsettledError):
        cloud.launch("n1")


def test_machines_that_have_ended_are_not_ordered_again() -> None:
    cloud = Cloud()
    cloud.launch()
    cloud.lists = [machine("n1"), machine("n2", state=InstanceState.TERMINATED)]
    assert cloud.launch() == ["n1", "n3"], "n3 may not be listed yet"
    cloud.now += LAG
    assert cloud.launch() == ["n1"], "lists would show it by now"
    cloud.lists = []
    with pytest.raises(CapacityError, match="MachinesGone: 3 machines of this launch have ended"):
        cloud.launch()
    assert cloud.ordered == list(NODES)


@pytest.mark.parametrize(("state", "there"), [
    (InstanceState.RUNNING, True), (InstanceState.PENDING, True), (InstanceState.STOPPING, False),
])  # fmt: skip
def test_a_machine_that_stops_serves_no_launch(state: InstanceState, there: bool) -> None:
    cloud = Cloud()
    cloud.lists = [machine("n1", state=state), machine("n2")]
    assert cloud.launch("n1", "n2") == (["n1", "n2"] if there else ["n2"])
    assert cloud.ordered == []


def test_what_a_launch_has_had_is_known_for_hours_and_then_forgotten() -> None:
    cloud = Cloud()
    cloud.launch("n1")
    cloud.now += LAUNCH_REMEMBERED_S + LAG
    cloud.launch("n2", generation="g2")
    with pytest.raises(CapacityError):
        cloud.launch("n1")
    cloud.now += 1
    cloud.launch("n2", generation="g3")
    assert cloud.launch("n1") == ["n1"]
    assert cloud.ordered == ["n1", "n2", "n2", "n1"]


# ending


def test_what_we_ended_is_on_its_way_out_whatever_the_list_says() -> None:
    cloud = Cloud()
    cloud.launch()
    cloud.lists = [machine(n, state=InstanceState.RUNNING) for n in NODES]
    ended: list[str] = []
    cloud.calls.terminate(["n1-g1", "n1-g1"], ended.append)
    assert ended == ["n1-g1"]
    shown = {one.node: one.state for one in cloud.calls.shown(cloud.lists)}
    assert shown == {
        "n1": InstanceState.STOPPING, "n2": InstanceState.RUNNING, "n3": InstanceState.RUNNING,
    }  # fmt: skip
    gone = [replace(cloud.lists[0], state=InstanceState.TERMINATED), *cloud.lists[1:]]
    assert [one.node for one in cloud.calls.shown(gone)] == ["n2", "n3"]


def test_one_that_we_ended_before_any_list_had_it_is_no_machine_of_its_launch() -> None:
    cloud = Cloud()
    cloud.launch("n1")
    cloud.calls.terminate(["n1-g1"], lambda _: None)
    with pytest.raises(CapacityError, match="MachinesGone"):
        cloud.launch("n1")
    late = [machine("n1", state=InstanceState.RUNNING)]
    assert [one.state for one in cloud.calls.shown(late)] == [InstanceState.STOPPING]


def test_of_machines_that_are_gone_nothing_is_kept() -> None:
    cloud = Cloud()
    cloud.launch("n1")
    cloud.calls.terminate(["n1-g1", "x-g0"], lambda _: None)
    both = [
        machine(node, generation, state=InstanceState.RUNNING)
        for node, generation in (("n1", "g1"), ("x", "g0"))
    ]

    def ending() -> list[str]:
        shown = cloud.calls.shown(both)
        return [one.node for one in shown if one.state is InstanceState.STOPPING]

    assert ending() == ["n1", "x"]
    cloud.calls.shown([])
    assert ending() == ["n1"], "a list may show it yet, as it is fresh"
    cloud.now += LAUNCH_REMEMBERED_S + LAG + 1
    cloud.launch("n2", generation="g2")
    cloud.calls.shown([])
    assert ending() == []


def refusing(wrong: dict[str, ProviderError], asked: list[str]) -> Callable[[str], None]:
    def end(one: str) -> None:
        asked.append(one)
        if one in wrong:
            raise wrong[one]

    return end


def test_one_that_cannot_be_ended_keeps_no_other_and_is_named() -> None:
    cloud, asked = Cloud(), list[str]()
    wrong = {"n1-g1": AuthError("c", "HTTP403", "protected"), "n3-g1": LOST}
    with pytest.raises(AuthError, match="HTTP403: n1-g1: protected"):
        cloud.calls.terminate(["n1-g1", "n2-g1", "n3-g1"], refusing(wrong, asked))
    assert asked == ["n1-g1", "n2-g1", "n3-g1"]
    shown = cloud.calls.shown([machine(n, state=InstanceState.RUNNING) for n in NODES])
    assert [one.node for one in shown if one.state is InstanceState.STOPPING] == ["n2"]


def test_one_that_is_gone_has_been_ended() -> None:
    cloud = Cloud()
    cloud.calls.terminate(["n1-g1"], refusing({"n1-g1": InstanceNotFound("c", "Gone", "")}, []))
    (one,) = cloud.calls.shown([machine("n1")])
    assert one.state is InstanceState.STOPPING


def test_a_failed_machine_whose_end_is_refused_is_listed_and_ended_later() -> None:
    """As long as it is there it costs, and the limits count it."""
    cloud, ended = Cloud(), []
    failed = {"n1-g1"}
    cloud.lists = [machine("n1"), machine("n2")]

    def refuse(_: str) -> None:
        raise TransientError("c", "Busy", "try again")

    def states(end: Callable[[str], None]) -> dict[str, InstanceState]:
        return {m.node: m.state for m in cloud.calls.shown(cloud.lists, failed, end)}

    pending, stopping = InstanceState.PENDING, InstanceState.STOPPING
    assert states(refuse) == {"n1": stopping, "n2": pending}
    assert states(ended.append) == {"n1": InstanceState.TERMINATED, "n2": pending}
    assert states(ended.append) == {"n1": stopping, "n2": pending}, "the list shows it still"
    assert ended == ["n1-g1"]
