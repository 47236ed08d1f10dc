"""The rights to an operator's actions, for the command line and the page.

The read door asks ``orders.may_order`` the same about its peers.
"""

from __future__ import annotations

import os
from functools import partial

from msgspec import Struct

from slurm_elastic.base.errors import SlurmElasticError
from slurm_elastic.base.processes.unixsocket import Peer
from slurm_elastic.config import Config
from slurm_elastic.watch.door.orders import may_order, name_of, no_right, own_name
from slurm_elastic.watch.door.questions import group_ids, trusted


class Person(Struct, frozen=True, kw_only=True):
    """The user who acts. ``name``: the name that orders and decisions record."""

    uid: int
    groups: frozenset[int] = frozenset()
    name: str


class NoRightError(SlurmElasticError):
    """The person may not do this."""


def own_person() -> Person:
    """The user of this process; behind sudo the name has the caller's name, too."""
    groups = frozenset((os.getegid(), *os.getgroups()))
    return Person(uid=os.geteuid(), groups=groups, name=own_name())


def person_of(peer: Peer) -> Person:
    """The user at the other end of a unix socket."""
    return Person(uid=peer.uid, groups=peer.groups, name=name_of(peer.uid))


def require_operator(config: Config, person: Person) -> None:
    """NoRightError if the person may not give orders."""
    operators = partial(group_ids, "operators", config.users.operators)
    if not may_order(person.uid, person.groups, trusted(config), operators):
        raise NoRightError(no_right(config))


def require_trusted(config: Config, person: Person) -> None:
    """NoRightError for all users but root and SlurmUser."""
    if person.uid not in trusted(config):
        raise NoRightError(f"this is for root and {config.slurm.user}")
