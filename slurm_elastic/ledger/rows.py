"""How the ledger's values become rows of its tables, and come back."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Sequence

import msgspec
from msgspec.structs import astuple

from slurm_elastic.directive import Directive, Word
from slurm_elastic.model import Exclusion, Instance, InstanceState, LaunchSpec, Market, Offer
from slurm_elastic.model_ledger import (
    INTENT,
    Aside,
    Decision,
    Drained,
    Health,
    Launch,
    Machine,
    Run,
)

LAUNCH_COLUMNS = (
    "generation, request, pool, cloud, nodes, jobs, offer, state, created, finished, "
    "error, accounts"
)
MACHINE_COLUMNS = (
    "id, cloud, node, generation, instance_type, zone, market, price, state, launched, address, "
    "pool, jobs, last_seen, misses, suspending, ended, why, worst_price, registered, accounts"
)
MACHINE_VALUES = ", ".join("?" * len(MACHINE_COLUMNS.split(",")))


GONE = "terminated in the cloud"

SEEN = """
    update machines set
        state = :state,
        address = coalesce(:address, address),
        last_seen = max(last_seen, :now),
        misses = 0,
        why = case
            when :state = 'terminated' and ended is null then coalesce(why, :gone)
            when :lives and ended is not null and suspending is null then null
            else why end,
        ended = case
            when :state = 'terminated' then coalesce(ended, :now)
            when :lives then null
            else ended end
    where id = :id and cloud = :cloud and (ended is null or (:lives and ended < :before))
"""
"""One machine of a complete read of its cloud, as ``Ledger.observe`` and ``adopt`` describe it."""


def to_json(value: object) -> str:
    """Any of our values as JSON text."""
    return msgspec.json.encode(value).decode()


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
    )


def same_call(one: Launch, other: Launch) -> bool:
    """Whether two rows ask the cloud for the same thing."""

    def asked(row: Launch) -> tuple[object, ...]:
        return row.pool, row.cloud, row.nodes, row.jobs, row.offers

    return asked(one) == asked(other)


def launch_row(launch: Launch) -> tuple[object, ...]:
    """Values for LAUNCH_COLUMNS."""
    return (
        launch.generation,
        launch.request,
        launch.pool,
        launch.cloud,
        to_json(launch.nodes),
        to_json(launch.jobs),
        to_json(launch.offers if launch.alternatives else launch.offer),
        launch.state,
        launch.created,
        launch.finished,
        launch.error,
        to_json(launch.accounts),
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
    )


def machine_row(machine: Machine) -> tuple[object, ...]:
    """Values for MACHINE_COLUMNS."""
    i = machine.instance
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
        to_json(machine.jobs),
        machine.last_seen,
        machine.misses,
        machine.suspending,
        machine.ended,
        machine.why,
        machine.worst_price,
        machine.registered,
        to_json(machine.accounts),
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
        jobs=msgspec.json.decode(row["jobs"], type=tuple[int, ...]),
        last_seen=row["last_seen"],
        misses=row["misses"],
        suspending=row["suspending"],
        ended=row["ended"],
        why=row["why"],
        worst_price=row["worst_price"],
        registered=row["registered"],
        accounts=msgspec.json.decode(row["accounts"], type=dict[str, int]),
    )


RUN_COLUMNS = "job, begin, end, label, user, uid, account, partition, shares"


def run_row(run: Run) -> tuple[object, ...]:
    """Values for RUN_COLUMNS."""
    return (*astuple(run)[:-1], to_json(run.shares))


def run_from(row: sqlite3.Row) -> Run:
    """A row of RUN_COLUMNS as a value."""
    shares = msgspec.json.decode(row["shares"], type=tuple[tuple[str, int], ...])
    names = ("job", "begin", "end", "label", "user", "uid", "account", "partition")
    return Run(shares=shares, **{name: row[name] for name in names})


DECISION_COLUMNS = "at, correlation, kind, subjects, reason, detail"


def decision_values(decisions: Sequence[Decision]) -> list[object]:
    """Values for DECISION_COLUMNS of one after the other."""
    values: list[object] = []
    for d in decisions:
        detail = None if d.detail is None else to_json(d.detail)
        values += (d.at, d.correlation, d.kind, to_json(d.subjects), d.reason, detail)
    return values


def decision_from(row: sqlite3.Row) -> Decision:
    """A decision row as a value; ``detail`` comes back as plain JSON values."""
    detail = row["detail"]
    return Decision(
        at=row["at"],
        correlation=row["correlation"],
        kind=row["kind"],
        subjects=msgspec.json.decode(row["subjects"], type=tuple[str, ...]),
        reason=row["reason"],
        detail=None if detail is None else msgspec.json.decode(detail, type=dict[str, object]),
    )


DIRECTIVE_COLUMNS = "word, who, since, starts, until, reason"


def directive_row(one: Directive) -> tuple[object, ...]:
    """Values for DIRECTIVE_COLUMNS."""
    return to_json(one.word), one.who, one.since, one.starts, one.until, one.reason


def directive_from(row: sqlite3.Row) -> Directive:
    """A directive row as a value."""
    word: Word = msgspec.json.decode(row["word"], type=Word)
    names = ("number", "who", "since", "starts", "until", "reason")
    return Directive(word=word, **{name: row[name] for name in names})


def aside_from(row: sqlite3.Row) -> Aside:
    """A row of a job set aside as a value."""
    partitions = msgspec.json.decode(row["partitions"], type=tuple[str, ...])
    names = ("job", "account", "begin", "until")
    return Aside(partitions=partitions, **{name: row[name] for name in names})


EXCLUSION_COLUMNS = "kind, scope, until, cause, code, count, since, pool, about"


def exclusion_row(one: Exclusion) -> tuple[object, ...]:
    """Values for EXCLUSION_COLUMNS."""
    return (*astuple(one)[:-1], to_json(one.about))


def exclusion_from(row: sqlite3.Row) -> Exclusion:
    """A row of EXCLUSION_COLUMNS as a value."""
    return Exclusion(**{**dict(row), "about": tuple(msgspec.json.decode(row["about"]))})


def drained_from(row: sqlite3.Row) -> Drained:
    return Drained(**dict(row))


def health_from(row: sqlite3.Row) -> Health:
    return Health(name=row[0], checked=row[1], error=row[2], code=row[3])


def seen_values(
    instance: Instance, cloud: str, now: float, *, adopted: bool = False
) -> dict[str, object]:
    """Values for SEEN. A row that has ended lives again where its machine serves since; where it is
    ``adopted`` in any state but TERMINATED, and whatever the head's clock says.
    """
    serves = instance.state in (InstanceState.PENDING, InstanceState.RUNNING)
    there = instance.state is not InstanceState.TERMINATED
    return {
        "id": instance.id,
        "cloud": cloud,
        "state": str(instance.state),
        "lives": there if adopted else serves,
        "before": math.inf if adopted else now,
        "address": instance.address,
        "now": now,
        "gone": GONE,
    }


def worst_price(instance: Instance, launch: Launch | None) -> float:
    """The highest price ($/h) a machine of that launch may come to; 0 where it is unknown."""
    if launch is None:
        return 0.0
    bought = [o for o in launch.offers if o.key == instance.offer_key] or launch.offers
    return max(instance.price, *(offer.worst_price for offer in bought))
