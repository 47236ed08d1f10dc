"""A busy hybrid cluster, as status and explain meet it."""

from __future__ import annotations

from pathlib import Path

from ledger_cases import T0, instance, offer, spec

from slurm_elastic.config import Cluster, Config, PoolSettings
from slurm_elastic.config.clouds import InstanceType
from slurm_elastic.config.sections.access import Who as Allowed
from slurm_elastic.model.causes import Quoted
from slurm_elastic.model.cluster import InstanceState, Limits, Location, Market, Offer, Pool
from slurm_elastic.model.exclusion import BREAKER, CAPACITY, COOL_DOWN, Exclusion
from slurm_elastic.model.slurm import SlurmJob, SlurmNode
from slurm_elastic.providers.aws.settings import AwsCloud
from slurm_elastic.providers.local.settings import LocalCloud
from slurm_elastic.slurm.client.fake import FakeSlurm
from slurm_elastic.state.ledger import Decision, Health, Ledger

NOW = T0 + 3700
LOCAL = offer(
    cloud="onprem", market=Market.RESERVED, price=0.01, on_demand=None, type_="local", zone="rack1"
)
ON_DEMAND = offer(market=Market.ON_DEMAND, price=0.12)


def config(state_dir: Path, *, allowed: bool = True) -> Config:
    return Config(
        cluster=Cluster(name="alps"),
        clouds=(
            LocalCloud(name="onprem", location=Location.ON_PREMISES, capacity=4),
            AwsCloud(
                name="aws",
                location=Location.PUBLIC,
                partition="burst",
                region="eu-west-1",
                image="ami-1",
                types={"c6i.xlarge": InstanceType(cpus=4, memory=8192, price=0.12)},
                limits=Limits(nodes=16, dollars_per_hour=5.0),
            ),
        ),
        pools=(
            PoolSettings(name="rack", cloud="onprem", nodes="op[1-2]", cpus=4, memory=8192),
            PoolSettings(
                name="general",
                cloud="aws",
                nodes="pub[1-8]",
                cpus=4,
                memory=8192,
                markets=(Market.SPOT, Market.ON_DEMAND),
                max_nodes=8,
                max_age=86400.0,
            ),
        ),
        state_dir=str(state_dir),
        allow=Allowed(accounts=("physics",)) if allowed else Allowed(),
    )


YAML = """
cluster: {{name: alps}}
state_dir: {state}
slurm: {{bin_dir: {state}/no-slurm-here}}
clouds:
  - {{name: onprem, provider: local, location: on-premises}}
pools:
  - name: rack
    cloud: onprem
    nodes: op[1-2]
    slurmd_port: 17001
    cpus: 4
    memory: 8G
"""


def config_file(state_dir: Path) -> Path:
    """A configuration whose Slurm is nowhere, for the command itself."""
    path = state_dir / "slurm-elastic.yaml"
    path.write_text(YAML.format(state=state_dir))
    return path


def rack_pool() -> Pool:
    return Pool(name="rack", cloud="onprem", nodes=("op1", "op2"), cpus=4, real_memory=7000)


def general_pool() -> Pool:
    nodes = tuple(f"pub{i}" for i in range(1, 9))
    return Pool(name="general", cloud="aws", nodes=nodes, cpus=4, real_memory=7000)


def buy(ledger: Ledger, generation: str, pool: Pool, bought: Offer, at: float, **ids: str) -> None:
    """Machines with these ids by node, launched at ``at``."""
    ledger.launches.record_intent(
        spec(generation, tuple(ids), pool, bought), f"req-{generation}", at
    )
    machines = [
        instance(id_, node, generation, InstanceState.RUNNING, at, "10.0.0.9", bought)
        for node, id_ in ids.items()
    ]
    ledger.machines.record_launch(generation, machines, at + 1)


def busy_ledger(path: Path) -> Ledger:
    """Two machines of each kind, one ended, one leaving, cool-downs, holds, a fresh heartbeat."""
    ledger = Ledger(path)
    spot, rack, general = offer(), rack_pool(), general_pool()
    buy(ledger, "g1", rack, LOCAL, T0, op1="local-op1-1", op2="local-op2-1")
    buy(
        ledger,
        "g2",
        general,
        spot,
        T0 + 100,
        pub1="i-0aaaaaaaaaaaaaaa1",
        pub2="i-0aaaaaaaaaaaaaaa2",
    )
    buy(ledger, "g3", general, ON_DEMAND, T0 + 3500, pub3="i-0bbbbbbbbbbbbbbb3")
    buy(
        ledger,
        "g4",
        general,
        spot,
        T0 + 200,
        pub4="i-0cccccccccccccc04",
        pub5="i-0ccccccccccccccc5",
    )
    ledger.machines.record_ending(
        "aws", ["i-0cccccccccccccc04"], Quoted(text="suspended by Slurm"), T0 + 3650
    )
    ledger.machines.record_end(
        "aws", ["i-0ccccccccccccccc5"], Quoted(text="suspended by Slurm"), T0 + 2000
    )
    ledger.launches.record_intent(spec("g5", ("pub6",), general, spot, (46,)), "req-g5", NOW - 5)
    ledger.exclusions.add(
        Exclusion(
            kind=COOL_DOWN,
            scope="aws/c6i.xlarge/eu-west-1b/spot",
            until=NOW + 100,
            code="InsufficientInstanceCapacity",
            cause=Quoted(
                text="We currently do not have sufficient c6i.xlarge capacity in zones [eu-west-1b]"
            ),
            count=2,
        )
    )
    ledger.exclusions.add(
        *[
            Exclusion(
                kind=CAPACITY,
                scope=n,
                pool="general",
                cause=Quoted(text="no offer left"),
                since=NOW - 60,
                until=NOW + 120,
            )
            for n in ("pub7", "pub8")
        ]
    )
    ledger.health.report(Health(name="onprem", checked=NOW - 3))
    ledger.health.report(
        Health(name="aws", checked=NOW - 8, error="aws: UnauthorizedOperation: no", code="auth")
    )
    ledger.exclusions.add(
        Exclusion(
            kind=BREAKER,
            scope="general",
            count=10,
            until=NOW + 3000,
            cause=Quoted(text="10 in a row"),
        )
    )
    ledger.exclusions.add(Exclusion(kind=BREAKER, scope="rack", count=2))
    decide(ledger)
    return ledger


def decide(ledger: Ledger) -> None:
    """The chain of job 42, whose node pub1 went to job 44 later."""
    ranked = {
        "ranked": [["aws/c6i.xlarge/eu-west-1a/spot", 8, "cheapest of 2"]],
        "rejected": [
            [
                "aws/c6i.xlarge/eu-west-1b/spot",
                "cools down for 100 s: InsufficientInstanceCapacity",
            ],
            ["aws/c6i.xlarge/eu-west-1a/on-demand", "dearer than the limit [5 $/h] allows"],
        ],
    }
    both = ("pub1", "pub2", "job:42")
    story: list[tuple[float, str, str, tuple[str, ...], str, dict[str, object] | None]] = [
        (90, "req-0", "dropped", ("pub1",), "Slurm does not have the node powering up", None),
        (100, "req-g2", "ranked", both, "best offer for 2 node(s) of pool general", ranked),
        (101, "req-g2", "launched", both, "c6i.xlarge in eu-west-1a, spot, $0.04/h", None),
        (
            400,
            "refuse",
            "requeued",
            ("job:42",),
            "no machine is available for its nodes: spot reclaim",
            None,
        ),
        (900, "reconcile", "terminated", ("pub1",), "suspended by Slurm", None),
        (2000, "req-g9", "launched", ("pub1", "job:44"), "for another job", None),
    ]
    ledger.decisions.record(
        *(
            Decision(at=T0 + at, correlation=c, kind=k, subjects=s, cause=Quoted(text=r), detail=d)
            for at, c, k, s, r, d in story
        )
    )


def node(name: str, *states: str, reason: str = "", last_busy: float = 0.0) -> SlurmNode:
    words = frozenset({*states, "CLOUD"})
    return SlurmNode(name=name, states=words, reason=reason, last_busy=last_busy)


def busy_slurm() -> FakeSlurm:
    hold = "slurm-elastic:hold:no offer left"
    return FakeSlurm(
        nodes=[
            SlurmNode(name="static1", states=frozenset({"IDLE"})),
            node("op1", "ALLOCATED"),
            node("op2", "IDLE", last_busy=NOW - 400),
            node("pub1", "MIXED"),
            node("pub2", "DOWN", reason="Not responding"),
            node("pub3", "ALLOCATED", "POWERING_UP"),
            node("pub4", "IDLE", "POWERING_DOWN"),
            node("pub5", "IDLE", "POWERED_DOWN"),
            node("pub6", "ALLOCATED", "POWERING_UP"),
            node("pub7", "IDLE", "POWERED_DOWN", "DRAIN", reason=hold),
            node("pub8", "IDLE", "POWERED_DOWN", "DRAIN", reason=hold),
        ],
        jobs=[
            job(41, "alice", "op1"),
            job(42, "bob", "pub1"),
            job(43, "carol", "pub1"),
            job(45, "dave", "pub3", state="CONFIGURING"),
            SlurmJob(id=50, states=frozenset({"PENDING"}), user="erin", reason="Resources"),
        ],
    )


def job(number: int, user: str, *nodes: str, state: str = "RUNNING") -> SlurmJob:
    return SlurmJob(id=number, states=frozenset({state}), user=user, nodes=nodes)
