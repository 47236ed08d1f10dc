"""How launches and machines become rows of the ledger, and come back."""

from __future__ import annotations

import math
import sqlite3

import msgspec

from slurm_elastic.model.cluster import (
    STANDING,
    Instance,
    InstanceState,
    LaunchSpec,
    Market,
    Offer,
)
from slurm_elastic.model.memory import INTENT, Launch, Machine
from slurm_elastic.state.ledger.mark_rows import to_jsons

GONE = "terminated in the cloud"
_JOBS = msgspec.json.Decoder(tuple[int, ...])
_ACCOUNTS = msgspec.json.Decoder(dict[str, int])


def launch_of_spec(
    spec: LaunchSpec, request: str, now: float, accounts: dict[str, dict[str, int]]
) -> Launch:
    """The row an intent begins with."""
    return Launch(
        generation=spec.generation,
        request=request,
        pool=spec.pool.name,
        cloud=spec.offer.cloud,
        nodes=spec.nodes,
        jobs=spec.jobs,
        offer=spec.offer,
        state=INTENT,
        created=now,
        alternatives=spec.alternatives,
        accounts=accounts,
        owner=spec.owner,
    )


def same_call(one: Launch, other: Launch) -> bool:
    """Whether two rows ask the cloud for the same thing."""

    def asked(row: Launch) -> tuple[object, ...]:
        return row.pool, row.cloud, row.nodes, row.jobs, row.offers

    return asked(one) == asked(other)


def launch_row(launch: Launch) -> tuple[object, ...]:
    """Values for LAUNCH_COLUMNS."""
    offers = launch.offers if launch.alternatives else launch.offer
    nodes, jobs, offer, accounts, owner = to_jsons(
        launch.nodes, launch.jobs, offers, launch.accounts, launch.owner
    )
    return (
        launch.generation,
        launch.request,
        launch.pool,
        launch.cloud,
        nodes,
        jobs,
        offer,
        launch.state,
        launch.created,
        launch.finished,
        launch.error,
        accounts,
        owner,
        launch.recipe,
    )


def launch_from(row: sqlite3.Row) -> Launch:
    """A row of LAUNCH_COLUMNS as a value. Its ``offer`` is a list where there are alternatives."""
    decode = msgspec.json.decode
    offers = decode(row["offer"], type=Offer | tuple[Offer, ...])
    offer, *others = (offers,) if isinstance(offers, Offer) else offers
    return Launch(
        generation=row["generation"],
        request=row["request"],
        pool=row["pool"],
        cloud=row["cloud"],
        nodes=decode(row["nodes"], type=tuple[str, ...]),
        jobs=decode(row["jobs"], type=tuple[int, ...]),
        offer=offer,
        alternatives=tuple(others),
        state=row["state"],
        created=row["created"],
        finished=row["finished"],
        error=row["error"],
        accounts=decode(row["accounts"], type=dict[str, dict[str, int]]),
        owner=decode(row["owner"], type=dict[str, str]),
        recipe=row["recipe"],
    )


def machine_row(machine: Machine) -> tuple[object, ...]:
    """Values for MACHINE_COLUMNS."""
    i = machine.instance
    jobs, accounts = to_jsons(machine.jobs, machine.accounts)
    return (
        i.id,
        i.cloud,
        i.node,
        i.generation,
        i.instance_type,
        i.zone,
        str(i.market),
        i.price,
        str(i.state),
        i.launched,
        i.address,
        machine.pool,
        jobs,
        machine.last_seen,
        machine.misses,
        machine.suspending,
        machine.ended,
        machine.why,
        machine.worst_price,
        machine.registered,
        accounts,
        machine.stopping,
        machine.stopped,
        machine.born,
        machine.tunnel_key,
    )


def machine_from(row: sqlite3.Row) -> Machine:
    """A row of MACHINE_COLUMNS as a value."""
    instance = Instance(
        id=row["id"],
        cloud=row["cloud"],
        node=row["node"],
        generation=row["generation"],
        instance_type=row["instance_type"],
        zone=row["zone"],
        market=Market(row["market"]),
        price=row["price"],
        state=InstanceState(row["state"]),
        launched=row["launched"],
        address=row["address"],
    )
    return Machine(
        instance=instance,
        pool=row["pool"],
        jobs=_JOBS.decode(row["jobs"]),
        last_seen=row["last_seen"],
        misses=row["misses"],
        suspending=row["suspending"],
        ended=row["ended"],
        why=row["why"],
        worst_price=row["worst_price"],
        registered=row["registered"],
        accounts=_ACCOUNTS.decode(row["accounts"]),
        stopping=row["stopping"],
        stopped=row["stopped"],
        born=row["born"],
        tunnel_key=row["tunnel_key"],
    )


def seen_values(
    instance: Instance, cloud: str, now: float, *, adopted: bool = False
) -> dict[str, object]:
    """Values for SEEN. A row that has ended lives again where its machine serves since, or is
    stopped as it was to be; where it is ``adopted`` in any state but TERMINATED, and whatever the
    head's clock says.
    """
    serves = instance.state in STANDING
    there = instance.state is not InstanceState.TERMINATED
    return {
        "id": instance.id,
        "cloud": cloud,
        "state": str(instance.state),
        "lives": there if adopted else serves,
        "off": instance.state is InstanceState.STOPPED,
        "before": math.inf if adopted else now,
        "address": instance.address,
        "now": now,
        "gone": GONE,
    }
