"""SlurmUser, given by name or by uid in slurm.conf and our configuration; and Unix groups."""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from slurm_elastic.base import trust, writing
from slurm_elastic.base.errors import SlurmElasticError
from slurm_elastic.base.processes import thread_rights


def account(user: str) -> pwd.struct_passwd:
    """The account with that name, otherwise with that uid (slurm.conf(5), SlurmUser).

    KeyError if this host has neither.
    """
    try:
        return pwd.getpwnam(user)
    except KeyError:
        if not (user.isascii() and user.isdecimal() and len(user) <= 10):
            raise
    return pwd.getpwuid(int(user))


def trusted(user: str) -> frozenset[int]:
    """Root's uid, and SlurmUser's uid if this host has the account."""
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


def has_members(group: str) -> bool:
    """Whether this host shows a member of the group: in its list, or an account with that gid.

    A directory service may show neither, although users are in the group.
    """
    entry = grp.getgrnam(group)
    return bool(entry.gr_mem) or any(user.pw_gid == entry.gr_gid for user in pwd.getpwall())


def same_account(user: str, other: str) -> bool:
    """Whether ``user`` and ``other``, each a name or a uid, mean the same account."""
    try:
        return user == other or account(user).pw_uid == account(other).pw_uid
    except (KeyError, OverflowError):
        return False


@contextlib.contextmanager
def acting_as(user: str) -> Iterator[None]:
    """Run the body with the rights of ``user``, if this host has the account and we can take on its
    rights. The body then opens no file that the account may not open. Only this thread and its
    children get these rights.
    """
    try:
        rights = _rights(account(user))
    except KeyError:  # a container may lack the account
        yield
        return
    with _acting(rights, is_required=False):
        yield


@contextlib.contextmanager
def acting_in(directories: Sequence[Path], user: str) -> Iterator[None]:
    """Run the body with the rights of ``user``, whose files are in these directories.

    The owner of a directory can put a link to a file of root's under any name in it, and root would
    write through the link. Root keeps its own rights only if all directories are root's alone.
    Other threads keep their rights. SlurmElasticError if root cannot give up its rights.
    """
    if os.geteuid() != 0 or all(map(is_roots, directories)):
        yield
        return
    with _acting(_rights_in(directories[0], user), is_required=True):
        yield


class _Rights(NamedTuple):
    uid: int
    gid: int
    groups: Sequence[int]


def _rights(entry: pwd.struct_passwd) -> _Rights:
    return _Rights(entry.pw_uid, entry.pw_gid, os.getgrouplist(entry.pw_name, entry.pw_gid))


def is_roots(directory: Path) -> bool:
    """Whether only root can put files and links into the directory."""
    with contextlib.suppress(OSError):
        return trust.flaw(directory, trust.roots()) is None
    return False


def _rights_in(directory: Path, user: str) -> _Rights:
    """The rights of ``user``. If this host lacks the account, as a container may, return the rights
    of the directory's owner.
    """
    try:
        return _rights(account(user))
    except KeyError:
        pass
    try:
        uid, gid = writing.owner_in(directory) or (os.geteuid(), os.getegid())
    except OSError as error:
        raise SlurmElasticError(f"slurm.user: this host has no user {user}") from error
    return _Rights(uid, gid, [gid])


@contextlib.contextmanager
def _acting(rights: _Rights, *, is_required: bool) -> Iterator[None]:
    if os.geteuid() != 0 or rights.uid == 0:
        yield
        return
    before = _Rights(0, os.getegid(), os.getgroups())
    try:
        _take_on(rights)
    except OSError as error:
        with contextlib.suppress(OSError):  # the kernel may refuse this change as well
            _take_back(before)
        if is_required:
            raise SlurmElasticError(
                f"root cannot take on the rights of uid {rights.uid}, SlurmUser: {error}"
            ) from error
        yield
        return
    try:
        yield
    finally:
        _take_back(before)


def _take_on(rights: _Rights) -> None:
    # The uid comes last, because without root's uid the thread may not change the others.
    thread_rights.set_groups(rights.groups)
    thread_rights.set_effective_gid(rights.gid)
    thread_rights.set_effective_uid(rights.uid)


def _take_back(before: _Rights) -> None:
    # The uid comes first, because it gives back the right to change the others.
    thread_rights.set_effective_uid(before.uid)
    thread_rights.set_effective_gid(before.gid)
    with contextlib.suppress(OSError):  # a container may forbid setgroups(2) altogether
        thread_rights.set_groups(before.groups)
