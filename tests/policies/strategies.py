"""Hypothesis strategies for the values that policies take."""

from __future__ import annotations

from hypothesis import strategies as st

from slurm_elastic.model.cluster import (
    Instance,
    InstanceState,
    Location,
    Market,
    NodeRequest,
    Offer,
    Pool,
)
from slurm_elastic.model.slurm import SlurmNode
from slurm_elastic.policies.repair.cloud_view import (
    CloudView,
    Intent,
    StoppedInstance,
    TrackedInstance,
)

NOW = 1_000_000.0
NAMES = [f"pub{i}" for i in range(1, 7)]
PHASES = [
    frozenset({"IDLE", "CLOUD", "POWERED_DOWN"}),
    frozenset({"ALLOCATED", "CLOUD", "POWERING_UP", "NOT_RESPONDING"}),
    frozenset({"IDLE", "CLOUD"}),
    frozenset({"ALLOCATED", "CLOUD"}),
    frozenset({"ALLOCATED", "CLOUD", "NOT_RESPONDING"}),
    frozenset({"IDLE", "CLOUD", "POWERING_DOWN"}),
    frozenset({"IDLE", "CLOUD", "POWER_DOWN"}),
    frozenset({"DOWN", "CLOUD", "NOT_RESPONDING"}),
    frozenset({"DOWN", "CLOUD", "POWERED_DOWN"}),
    frozenset({"IDLE", "CLOUD", "DRAIN", "POWERED_DOWN"}),
]
REASONS = [
    "",
    "admin: broken fan",
    "slurm-elastic:hold:x",
    "Not responding",
    "ResumeTimeout reached",
]


@st.composite
def offers(draw: st.DrawFn, cloud: str = "aws") -> Offer:
    on_demand = draw(st.floats(0.01, 5))
    return Offer(
        cloud=cloud,
        location=draw(st.sampled_from(Location)),
        instance_type=draw(st.sampled_from(["small", "medium", "large"])),
        zone=draw(st.sampled_from(["a", "b", "c"])),
        market=draw(st.sampled_from(Market)),
        price=draw(st.floats(0.01, 5)),
        on_demand_price=draw(st.none() | st.just(on_demand)),
        cpus=draw(st.integers(1, 16)),
        memory=draw(st.integers(500, 64_000)),
        free=draw(st.none() | st.integers(0, 10)),
    )


def pool(**changes: object) -> Pool:
    fields: dict[str, object] = {
        "name": "std",
        "cloud": "aws",
        "nodes": tuple(NAMES),
        "cpus": 2,
        "real_memory": 1000,
        "markets": tuple(Market),
    }
    return Pool(**(fields | changes))  # type: ignore[arg-type]


def request(**changes: object) -> NodeRequest:
    return NodeRequest(id="r1", pool=pool(**changes), nodes=tuple(NAMES[:4]))


slurm_nodes = st.builds(
    SlurmNode,
    name=st.sampled_from(NAMES),
    states=st.sampled_from(PHASES),
    reason=st.sampled_from(REASONS),
)


@st.composite
def views(draw: st.DrawFn) -> CloudView:
    nodes = draw(st.lists(slurm_nodes, unique_by=lambda n: n.name))
    known = [
        TrackedInstance(
            id=f"i-{k}",
            node=draw(st.sampled_from(NAMES)),
            generation=f"g{k}",
            decided_at=NOW - draw(st.floats(0, 1e5)),
            missed_listings=draw(st.integers(0, 5)),
            is_ending=draw(st.booleans()),
            max_age=draw(st.none() | st.just(3600.0)),
        )
        for k in range(draw(st.integers(0, 8)))
    ]
    ids = draw(st.lists(st.sampled_from([f"i-{k}" for k in range(10)]), unique=True))
    seen = [instance(i, draw(st.sampled_from(NAMES)), f"g{i[2:]}") for i in ids]
    intents = [
        Intent(generation=f"g{20 + k}", nodes=(draw(st.sampled_from(NAMES)),), created=NOW - 10)
        for k in range(draw(st.integers(0, 2)))
    ]
    return CloudView(
        now=NOW,
        nodes={n.name: n for n in nodes},
        tracked=tuple(known),
        intents=tuple(intents),
        listed=draw(st.none() | st.just(tuple(seen))),
        stopped=tuple(
            StoppedInstance(id=f"i-{8 + k}", node=draw(st.sampled_from(NAMES)))
            for k in range(draw(st.integers(0, 2)))
        ),
        held=frozenset(draw(st.lists(st.sampled_from(NAMES)))),
    )


def instance(ident: str, node: str, generation: str) -> Instance:
    return Instance(
        id=ident,
        cloud="aws",
        node=node,
        generation=generation,
        instance_type="small",
        zone="a",
        market=Market.SPOT,
        price=0.1,
        state=InstanceState.RUNNING,
        launched=NOW,
    )
