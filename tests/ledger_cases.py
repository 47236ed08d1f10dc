"""Values to fill a ledger with, for several test modules."""

from __future__ import annotations

from slurm_elastic.model.cluster import (
    Instance,
    InstanceState,
    LaunchSpec,
    Location,
    Market,
    Offer,
    Pool,
)

T0 = 1_800_000_000.0


def pool(name: str = "burst", cloud: str = "aws", count: int = 8, prefix: str = "pub") -> Pool:
    nodes = tuple(f"{prefix}{i}" for i in range(1, count + 1))
    return Pool(name=name, cloud=cloud, nodes=nodes, cpus=4, real_memory=7000)


def offer(
    cloud: str = "aws",
    market: Market = Market.SPOT,
    price: float = 0.04,
    on_demand: float | None = 0.12,
    type_: str = "c6i.xlarge",
    zone: str = "eu-west-1a",
) -> Offer:
    return Offer(
        cloud=cloud,
        location=Location.PUBLIC,
        instance_type=type_,
        zone=zone,
        market=market,
        price=price,
        cpus=4,
        memory=8192,
        on_demand_price=on_demand,
    )


def spec(
    generation: str = "g1",
    nodes: tuple[str, ...] = ("pub1", "pub2"),
    of: Pool | None = None,
    bought: Offer | None = None,
    jobs: tuple[int, ...] = (),
) -> LaunchSpec:
    return LaunchSpec(
        generation=generation,
        pool=of or pool(),
        nodes=nodes,
        offer=bought or offer(),
        jobs=jobs,
    )


def instance(
    id_: str = "i-1",
    node: str = "pub1",
    generation: str = "g1",
    state: InstanceState = InstanceState.PENDING,
    launched: float = T0,
    address: str | None = None,
    bought: Offer | None = None,
) -> Instance:
    o = bought or offer()
    return Instance(
        id=id_,
        cloud=o.cloud,
        node=node,
        generation=generation,
        instance_type=o.instance_type,
        zone=o.zone,
        market=o.market,
        price=o.price,
        state=state,
        launched=launched,
        address=address,
    )
