"""A daemon's journal put through the simulator."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from slurm_elastic.model.causes import Quoted
from slurm_elastic.policies.growth.capacity import (
    AnyGrowth,
    Bursts,
    GroupBursts,
    OnDemand,
    Ratio,
    SemiElastic,
    Slurm,
    SteadyStream,
)
from slurm_elastic.policies.growth.dealing import split_demand
from slurm_elastic.policies.growth.release import AnyRelease, AtOnce, Delayed, Flagged, Idle
from slurm_elastic.policies.growth.scaling import (
    GroupSnapshot,
    IdleInstance,
    PendingJob,
    PoolRules,
    PoolSnapshot,
    ScaleUp,
    decide,
)
from tests.simulate.replay import differences, entry

T = 1_800_000_000
GROWTH: tuple[AnyGrowth, ...] = (
    Slurm(), OnDemand(), Bursts(waste=60), GroupBursts(), Ratio(), SemiElastic(wait_limit=60),
)  # fmt: skip
RELEASE: tuple[AnyRelease | None, ...] = (None, Idle(60), AtOnce(), Delayed(60, 30))


@st.composite
def moments(draw: st.DrawFn) -> GroupSnapshot:
    flagged = draw(st.booleans())
    growth = draw(st.sampled_from((*GROWTH, SteadyStream(waste=60)) if flagged else GROWTH))
    cloud = draw(st.sampled_from(("", "both")))
    pools = tuple(
        replace(_pool(draw, name, growth, flagged), cloud=cloud) for name in ("rack", "burst")
    )
    jobs = st.builds(
        PendingJob,
        st.integers(1, 50),
        st.integers(1, 4),
        st.integers(60, 600),
        st.integers(T - 500, T),
        st.sampled_from((("rack",), ("burst",), ("rack", "burst"))),
        st.integers(1, 3),
        st.sampled_from(("", "", "rack-off0", "burst-off[0-1],rack0")),
        st.sampled_from(("", "", "burst-off2")),
    )
    queue = tuple(draw(st.lists(jobs, max_size=6, unique_by=lambda job: job.id)))
    return GroupSnapshot(
        now=T,
        growth=growth,
        pools=pools,
        queue=queue,
        covered=tuple(job.id for job in queue if draw(st.booleans())),
        begun=tuple(job.id for job in queue if not draw(st.integers(0, 3))),
    )


def _pool(draw: st.DrawFn, name: str, growth: AnyGrowth, flagged: bool) -> PoolSnapshot:
    started = st.integers(T - 10_000, T)
    idle = [
        IdleInstance(f"{name}{i}", start, draw(st.integers(start, T)))
        for i, start in enumerate(draw(st.lists(started, max_size=4)))
    ]
    room = draw(st.integers(0, 5))
    return PoolSnapshot(
        name=name,
        off=",".join(f"{name}-off{i}" for i in range(room)),
        rules=PoolRules(
            growth=growth,
            release=Flagged() if flagged else draw(st.sampled_from(RELEASE)),
            lease=draw(st.sampled_from((1, 60, 3600))),
            min_idle=0 if flagged else draw(st.integers(0, 2)),
            public=name == "burst",
        ),
        room=room,
        total_room=draw(st.none() | st.integers(room, room + 3)),
        stop=draw(st.none() | st.just(Quoted(text="the budget is spent"))),
        idle=tuple(idle),
        taken=tuple(f"{name}-{i}" for i in range(draw(st.integers(0, 3)))),
        booting=draw(st.integers(0, 3)),
        running=draw(st.integers(0, 3)),
        free=tuple(draw(st.lists(st.integers(T, T + 500), max_size=3))),
    )


@given(moments())
def test_daemon_and_simulator_decide_the_same(now: GroupSnapshot) -> None:
    dealt = split_demand(now)
    journal = [msgspec.json.encode({"now": one, "plan": plan}) for one, plan in dealt]
    found = [entry(msgspec.json.decode(line)) for line in journal]
    assert found == dealt
    assert differences(dealt) == []


def test_machines_promised_to_other_jobs_are_nobodys_to_flag() -> None:
    rules = PoolRules(growth=SteadyStream(waste=60), release=Flagged())
    rack = PoolSnapshot(
        name="rack", rules=rules, idle=(IdleInstance("r0", T, T), IdleInstance("r1", T, T))
    )
    jobs = (PendingJob(1, 2, 60, T, ("rack",), 4), PendingJob(2, 1, 60, T, ("rack", "burst")))
    now = GroupSnapshot(
        now=T,
        growth=rules.growth,
        pools=(rack, PoolSnapshot(name="burst", rules=rules)),
        queue=jobs,
    )
    dealt = split_demand(now)
    assert [moment.pools[0].promised for moment, _ in dealt] == [0, 2]
    assert differences(dealt) == []


def test_another_decision_is_told() -> None:
    rules = PoolRules(growth=OnDemand(), release=Idle(60))
    now = GroupSnapshot(
        now=T,
        growth=OnDemand(),
        pools=(PoolSnapshot(name="burst", rules=rules, room=5),),
        queue=(PendingJob(1, 2, 60, T, ("burst",)),),
    )
    plan = decide(now)
    assert plan.starts == (ScaleUp("burst", 2, "1 new jobs wait for 2 nodes", least=2),)
    other = replace(plan, starts=(ScaleUp("burst", 3, "x", least=2),))
    assert differences([(now, other)]) == [
        f"at {T}: starts: the daemon {{'burst': 3}}, the simulator {{'burst': 2}}"
    ]


def test_other_decisions_are_no_entries() -> None:
    assert entry(None) is None
    assert entry({"ranked": []}) is None
