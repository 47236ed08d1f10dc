"""The user of a copy, and how a process becomes this user."""

from __future__ import annotations

import json
import os
from typing import Any, NamedTuple

from .wire import CopyError

COMMAND = "jobfiles"
"""The first word of the command that slurm-elasticd gives to ssh. The node and an order follow."""
_ORDER_WORD = 2


class Identity(NamedTuple):
    """The user and the job of a copy, and its kind (``do``: out, back or outputs)."""

    do: str
    job: int
    uid: int
    gid: int
    groups: list[int]


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
    identity = Identity(str(order["do"]), order["job"], order["uid"], order["gid"], groups)
    if any(type(number) is not int for number in (identity.job, *identity[2:4], *groups)):
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
