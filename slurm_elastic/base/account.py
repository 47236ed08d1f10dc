"""SlurmUser, whom slurm.conf and our configuration may give by name or by number."""

from __future__ import annotations

import contextlib
import pwd


def account(user: str) -> pwd.struct_passwd:
    """The account of that name, else of that number (slurm.conf(5), SlurmUser). KeyError if this
    host has none.
    """
    try:
        return pwd.getpwnam(user)
    except KeyError:
        if not (user.isascii() and user.isdecimal() and len(user) <= 10):
            raise
    return pwd.getpwuid(int(user))


def trusted(user: str) -> frozenset[int]:
    """Root's uid and that of SlurmUser, as far as this host has one."""
    with contextlib.suppress(KeyError):
        return frozenset({0, account(user).pw_uid})
    return frozenset({0})


def same(one: str, other: str) -> bool:
    """Whether both mean one account."""
    try:
        return one == other or account(one).pw_uid == account(other).pw_uid
    except (KeyError, OverflowError):
        return False
