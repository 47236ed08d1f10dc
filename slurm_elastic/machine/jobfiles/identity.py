"""The user of a copy, and how a process becomes this user."""

from __future__ import annotations

import json
import os
from itertools import chain
from typing import Any, NamedTuple

from .wire import CopyError

COMMAND = "jobfiles"
"""The first word of the command that slurm-elasticd gives to ssh. The node and an order follow."""
END_WAIT_S = 240
"""How long a copy back waits for the end of a job's processes if there is time for another try."""
_ORDER_WORD = 2


class Identity(NamedTuple):
    """The user and the job of a copy, and its kind (``do``: out, back or outputs).

    ``restarts``: the run of the job. ``made_at``: when slurm-elasticd made the order (ns).
    ``live``: the runs (job, restarts) whose copies counted on the machine then. ``end_wait``: how
    many seconds a copy back waits for the end of the job's processes.
    """

    do: str
    job: int
    uid: int
    gid: int
    groups: list[int]
    restarts: int
    made_at: int
    live: list[tuple[int, int]]
    end_wait: int

    @property
    def run(self) -> str:
        """The run as the record of a directory names it."""
        return run_name(self.job, self.restarts)

    def counts(self, run: str, ordered_at: int) -> bool:
        """Whether files of this run may still go back. A run that was ordered after our order was
        made is not in ``live``, and counts.
        """
        return ordered_at >= self.made_at or run in {run_name(*live) for live in self.live}


def run_name(job: int, restarts: int) -> str:
    """A run of a job."""
    return f"{job}.{restarts}"


def read(command: str) -> Identity:
    """The identity in the ssh command. CopyError if it is no user whose files are copied."""
    parts = command.split(" ", _ORDER_WORD)
    text = parts[_ORDER_WORD] if len(parts) > _ORDER_WORD and parts[0] == COMMAND else ""
    try:
        return of(json.loads(text))
    except (ValueError, KeyError, TypeError):
        raise CopyError("the ssh command names no user and job", final=True) from None


def of(order: Any) -> Identity:  # noqa: ANN401 - JSON
    """The identity in an order. CopyError for root; ValueError, KeyError or TypeError if it is
    not complete.
    """
    groups = list(order["groups"])
    live = [(job, restarts) for job, restarts in order["live"]]
    identity = Identity(str(order["do"]), order["job"], order["uid"], order["gid"], groups,
                        order["restarts"], order["made_at"], live,
                        order["end_wait"])  # fmt: skip
    numbers = (
        *identity[1:4], identity.restarts, identity.made_at, identity.end_wait, *groups
    )  # fmt: skip
    if any(type(number) is not int for number in (*numbers, *chain(*live))):
        raise TypeError
    if min(identity.uid, identity.gid, *groups) <= 0:
        raise CopyError("files are copied for users, not for root", final=True)
    return identity


def become(identity: Identity) -> None:
    """Become the user for good.

    If root calls this and starts no program after it, the kernel lets no other process of the user
    trace this process or open its files. So everything that this process sends is from our code.
    """
    # The user last: without root's rights the groups could not be set.
    os.setgroups(sorted(identity.groups))
    os.setgid(identity.gid)
    os.setuid(identity.uid)
