"""The messages between the ``local`` provider and its agent, and what a machine's file holds.

One JSON object a line, answered by one line. ``{"ok": true, ...}`` or ``{"ok": false, "code": CODE,
"message": SENTENCE}``::

    {"op": "ping"}                          -> capacity, used
    {"op": "list", "cluster": UUID}         -> machines (those not terminated)
    {"op": "launch", "cluster": UUID, "generation": G, "pool": P, "nodes": [...],
     "instance_type": T, "market": M, "price": $/h, "jobs": [...]}       -> machines, in order
    {"op": "terminate", "cluster": UUID, "ids": [...]}                   -> nothing more
"""

from __future__ import annotations

from msgspec import Struct

from slurm_elastic.machine.local.local_processes import Process
from slurm_elastic.model.cluster import InstanceState, Market


class Record(Struct, frozen=True, kw_only=True):
    """One machine, as its file has it. ``process`` is its slurmd; times are Unix time."""

    id: str
    cluster: str
    node: str
    generation: str
    index: int
    pool: str
    instance_type: str
    market: Market
    price: float
    jobs: tuple[int, ...]
    state: InstanceState
    launched: float
    due: float
    process: Process | None = None
    stop_by: float | None = None
    ended: float | None = None
    why: str = ""


class LaunchOrder(Struct, frozen=True, kw_only=True, tag_field="op", tag="launch"):
    """Start machines for ``nodes``, or only for the first of them if there is not room for all."""

    cluster: str
    generation: str
    pool: str
    nodes: tuple[str, ...]
    instance_type: str
    market: Market
    price: float
    jobs: tuple[int, ...] = ()


class List(Struct, frozen=True, kw_only=True, tag_field="op", tag="list"):
    """The cluster's machines that are not terminated."""

    cluster: str


class Terminate(Struct, frozen=True, kw_only=True, tag_field="op", tag="terminate"):
    """End exactly these machines of the cluster; unknown and ended ones are passed over."""

    cluster: str
    ids: tuple[str, ...]


class Ping(Struct, frozen=True, kw_only=True, tag_field="op", tag="ping"):
    """Whether the agent works, and how full it is."""


Message = LaunchOrder | List | Terminate | Ping


class AgentAnswer(Struct, frozen=True, kw_only=True):
    """The agent's answer; fields that do not apply have their defaults."""

    ok: bool
    code: str = ""
    message: str = ""
    machines: tuple[Record, ...] = ()
    capacity: int | None = None
    used: int | None = None
