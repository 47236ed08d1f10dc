"""The messages between the ``local`` provider and its agent, and the record in a machine's file.

One JSON object per line, answered by one line. ``{"ok": true, ...}`` or ``{"ok": false, "code":
CODE, "message": SENTENCE}``::

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


class MachineRecord(Struct, frozen=True, kw_only=True):
    """One machine, as stored in its file.

    ``process`` is its slurmd. ``due``: start slurmd from then on. ``stop_by``: power the machine
    off then. Times are Unix time.
    """

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
    """Start machines for ``nodes``. If there is not room for all, start them for the first nodes
    only.
    """

    cluster: str
    generation: str
    pool: str
    nodes: tuple[str, ...]
    instance_type: str
    market: Market
    price: float
    jobs: tuple[int, ...] = ()


class ListOrder(Struct, frozen=True, kw_only=True, tag_field="op", tag="list"):
    """Ask for the cluster's machines except terminated ones."""

    cluster: str


class TerminateOrder(Struct, frozen=True, kw_only=True, tag_field="op", tag="terminate"):
    """End these machines of the cluster. Unknown and ended machines are skipped."""

    cluster: str
    ids: tuple[str, ...]


class Ping(Struct, frozen=True, kw_only=True, tag_field="op", tag="ping"):
    """Ask whether the agent works, and how many machines it has."""


Message = LaunchOrder | ListOrder | TerminateOrder | Ping


class AgentAnswer(Struct, frozen=True, kw_only=True):
    """The agent's answer. Fields that do not apply have their defaults."""

    ok: bool
    code: str = ""
    message: str = ""
    machines: tuple[MachineRecord, ...] = ()
    capacity: int | None = None
    used: int | None = None
    gone: tuple[str, ...] = ()
    """The ids of a TerminateOrder whose machines have ended or are unknown to the agent."""
    not_ours: tuple[str, ...] = ()
    """The ids of a TerminateOrder whose machines belong to another cluster."""
