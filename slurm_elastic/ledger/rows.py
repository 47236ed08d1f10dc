"""The ledger's memory, as values, and how they become rows and come back."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Sequence

import msgspec
from msgspec import Struct, field
from msgspec.structs import astuple

from slurm_elastic.directive import Directive, Word
from slurm_elastic.model import Exclusion, Instance, InstanceState, LaunchSpec, Lease, Market, Offer

INTENT, DONE, FAILED = "intent", "done", "failed"

MACHINE_JOBS = 20
"""How many of its launch's jobs a machine's row repeats: a launch of thousands of machines may be
for as many jobs, and each machine with all of them would make rows by the square.
"""


class Launch(Struct, frozen=True, kw_only=True):
    """A launch row. ``state``: ``intent`` (call not known to have answered), ``done``, ``failed``.

    ``offer`` is what was asked, or any of ``alternatives``; ``error`` the cloud's words where it
    failed. ``accounts``: by node, who pays it.
    """

    generation: str
    request: str
    pool: str
    cloud: str
    nodes: tuple[str, ...]
    jobs: tuple[int, ...]
    offer: Offer
    state: str
    created: float
    finished: float | None = None
    error: str | None = None
    alternatives: tuple[Offer, ...] = ()
    accounts: dict[str, dict[str, int]] = field(default_factory=dict)

    @property
    def offers(self) -> tuple[Offer, ...]:
        """All that its machines may come from."""
        return (self.offer, *self.alternatives)


class Machine(Struct, frozen=True, kw_only=True):
    """An instance row: the instance as last seen and what we know beyond the cloud.

    ``misses`` counts consecutive reads of the cloud without it; ``suspending`` is set (time) when
    its termination was decided (intent), ``ended`` when it is known to be gone; ``why`` says why.
    ``jobs`` are the first MACHINE_JOBS of those its launch was for (the launch has them all).
    ``worst_price`` ($/h) is the highest this machine may come to: on-demand where its offer had
    such a price (0 for an adopted machine whose launch is not known: take ``instance.price``).
    ``registered`` is when its node was first seen up: until then it boots.
    ``accounts`` pay it, each so many parts; empty: none does.
    """

    instance: Instance
    pool: str
    jobs: tuple[int, ...] = ()
    last_seen: float = 0.0
    misses: int = 0
    suspending: float | None = None
    ended: float | None = None
    why: str | None = None
    worst_price: float = 0.0
    registered: float | None = None
    accounts: dict[str, int] = field(default_factory=dict)

    @property
    def boots(self) -> bool:
        """Whether it is wanted and has not registered yet."""
        return self.registered is None and self.suspending is None and self.ended is None

    @property
    def lease(self) -> Lease:
        """The lease of this machine."""
        i = self.instance
        return Lease(instance=i.id, node=i.node, start=i.launched, end=self.ended, price=i.price)


class Aside(Struct, frozen=True, kw_only=True):
    """A job that is kept from public clouds, as its ``account`` is over its budget. The values that
    it had before: ``partitions`` (empty: they were not changed) and the time that it was to
    ``begin`` (0: none). ``until`` is the begin that we gave it (0: none).
    """

    job: int
    account: str
    partitions: tuple[str, ...] = ()
    begin: float = 0.0
    until: float = 0.0


class Decision(Struct, frozen=True, kw_only=True):
    """One entry of the decision chain that ``explain`` prints. ``subjects``: node names and
    ``job:ID``; ``detail`` is free-form (ranked and rejected offers, errors).
    """

    at: float
    correlation: str
    kind: str
    subjects: tuple[str, ...]
    reason: str
    detail: dict[str, object] | None = None


class Health(Struct, frozen=True, kw_only=True):
    """How a cloud (or ``slurm``) last answered; ``error`` is None when it did."""

    name: str
    checked: float
    error: str | None = None
    code: str | None = None

    @property
    def told(self) -> str:
        """The error with the name of who met it, which many errors begin with already."""
        own = f"{self.name}: "
        return own + (self.error or "").removeprefix(own)


class Run(Struct, frozen=True, kw_only=True):
    """One run of a job on nodes of ours, from ``begin`` to ``end`` (None: it runs). ``shares``: a
    hostlist, and how many millionths the job has of each of its nodes (``policies.cost_split``).
    """

    job: int
    begin: float
    end: float | None = None
    label: str = ""
    user: str = ""
    uid: int = -1
    account: str = ""
    partition: str = ""
    shares: tuple[tuple[str, int], ...] = ()


class Drained(Struct, frozen=True, kw_only=True):
    """A span in which a node with a machine took no jobs (``end`` None: it still does not)."""

    node: str
    begin: float
    end: float | None = None


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
