"""SlurmUser, whom slurm.conf and our configuration may give by name or by number; Unix groups."""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
from collections.abc import Iterator


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


def is_group(name: str) -> bool:
    """Whether this host has a Unix group of that name."""
    try:
        grp.getgrnam(name)
    except KeyError:
        return False
    return True


def same(one: str, other: str) -> bool:
    """Whether both mean one account."""
    try:
        return one == other or account(one).pw_uid == account(other).pw_uid
    except (KeyError, OverflowError):
        return False


@contextlib.contextmanager
def acting_as(user: str) -> Iterator[None]:
    """Have the rights of that account meanwhile, in all threads, where we are root and can take
    them on: what it may not open is not opened.
    """
    if os.geteuid() != 0:
        yield
        return
    groups, gid = os.getgroups(), os.getegid()
    try:
        with contextlib.suppress(KeyError, OSError):  # a container may lack the account
            them = account(user)
            os.setgroups(os.getgrouplist(them.pw_name, them.pw_gid))
            os.setegid(them.pw_gid)
            os.seteuid(them.pw_uid)
        yield
    finally:
        os.seteuid(0)
        os.setegid(gid)
        with contextlib.suppress(OSError):
            os.setgroups(groups)
