"""The states of a machine: one class per state, with the fields that this state has and no others.

::

    Booting --> Serving --> Stopping --> Stopped --> Booting
       |           |           |            |
       +-----------+-----> Ending <---------+
       |                      |
       v                      v
     Lost                   Ended

The table in ``slurm_elastic.state.ledger.machine_transitions`` shows which ledger call changes
which state. The ledger's columns are older than the states; ``columns_of`` and ``state_of``
convert. All times are Unix time.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

from msgspec import Struct

from slurm_elastic.model.causes import AnyCause, Quoted


class _State(Struct, frozen=True, kw_only=True, tag_field="state", tag=str.lower):
    """The base of all states. Each state answers the same four questions."""


class Booting(_State, frozen=True, kw_only=True):
    """The machine was launched or started, and its node has not registered with Slurm yet."""

    registered_at: ClassVar[None] = None
    retired_at: ClassVar[None] = None
    ended_at: ClassVar[None] = None
    cause: ClassVar[None] = None


class Serving(_State, frozen=True, kw_only=True):
    """The machine's node has registered with Slurm."""

    registered_at: float
    retired_at: ClassVar[None] = None
    ended_at: ClassVar[None] = None
    cause: ClassVar[None] = None


class Ending(_State, frozen=True, kw_only=True):
    """We decided to terminate the machine. It is paid until its cloud accepts that for the first
    time. A machine that was stopped, or whose earlier end failed, is paid until its cloud no longer
    lists it.
    """

    retired_at: float
    cause: AnyCause
    registered_at: float | None = None
    ended_at: ClassVar[None] = None


class Stopping(_State, frozen=True, kw_only=True):
    """We decided to stop the machine, to start it again later. The cloud has not confirmed the stop
    yet.
    """

    retired_at: float
    cause: AnyCause
    registered_at: float | None = None
    ended_at: ClassVar[None] = None


class Stopped(_State, frozen=True, kw_only=True):
    """The machine has been stopped in the cloud since ``since``, and only its disk is paid.
    ``cause``: why we stopped it.
    """

    since: float
    cause: AnyCause
    registered_at: ClassVar[None] = None
    ended_at: ClassVar[None] = None

    @property
    def retired_at(self) -> float:
        """When the machine was stopped: it has served no node since then."""
        return self.since


class Lost(_State, frozen=True, kw_only=True):
    """The machine ended without a decision of ours: its cloud took it, or no longer lists it."""

    ended_at: float
    cause: AnyCause
    registered_at: float | None = None
    retired_at: ClassVar[None] = None


class Ended(_State, frozen=True, kw_only=True):
    """The machine ended after we had retired it, or the next part of its life began at
    ``ended_at``. ``before``: its state until then.
    """

    ended_at: float
    before: Ending | Stopping | Stopped

    @property
    def registered_at(self) -> float | None:
        return self.before.registered_at

    @property
    def retired_at(self) -> float:
        return self.before.retired_at

    @property
    def cause(self) -> AnyCause:
        return self.before.cause


Wanted = Booting | Serving
"""No decision to end or to stop the machine exists."""
Retired = Ending | Stopping | Stopped
"""The machine is paid, but no longer serves a node."""
Over = Lost | Ended
"""The machine is gone and no longer paid."""
MachineState = Booting | Serving | Ending | Stopping | Stopped | Lost | Ended

BOOTING = Booting()
_NO_CAUSE = Quoted(text="")
"""Stands for the cause of a row that should have a cause and has none."""


class Columns(NamedTuple):
    """A state as columns of the ledger: times (Unix time) and the cause."""

    suspending: float | None = None
    ended: float | None = None
    cause: AnyCause | None = None
    registered: float | None = None
    stopping: float | None = None
    stopped: float | None = None


def columns_of(state: MachineState) -> Columns:
    """The columns of a state. ``state_of`` converts them back to the same state."""
    living = state.before if isinstance(state, Ended) else state
    return Columns(
        suspending=state.retired_at,
        ended=state.ended_at,
        cause=state.cause,
        registered=state.registered_at,
        stopping=living.retired_at if isinstance(living, Stopping) else None,
        stopped=living.since if isinstance(living, Stopped) else None,
    )


def state_of(
    *,
    suspending: float | None = None,
    ended: float | None = None,
    cause: AnyCause | None = None,
    registered: float | None = None,
    stopping: float | None = None,
    stopped: float | None = None,
) -> MachineState:
    """The state of a row. Every combination of columns yields a state, so that every journal can be
    opened. If a row has more columns than one state has, the latest state counts.
    """
    if stopped is not None:
        retired: Retired = Stopped(since=stopped, cause=cause or _NO_CAUSE)
    elif stopping is not None:
        retired_at = stopping if suspending is None else suspending
        retired = Stopping(
            retired_at=retired_at, cause=cause or _NO_CAUSE, registered_at=registered
        )
    elif suspending is not None:
        retired = Ending(retired_at=suspending, cause=cause or _NO_CAUSE, registered_at=registered)
    elif ended is not None:
        return Lost(ended_at=ended, cause=cause or _NO_CAUSE, registered_at=registered)
    else:
        return BOOTING if registered is None else Serving(registered_at=registered)
    return retired if ended is None else Ended(ended_at=ended, before=retired)
