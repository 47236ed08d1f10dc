"""Act with the user's rights on files while we access the user's files."""

from __future__ import annotations

import contextlib
import errno
import os
import struct
from collections.abc import Iterator
from typing import Protocol


class RightsUser(Protocol):
    """The owner of the rights: a ``caller.Caller`` or a ``payload.Payload``."""

    @property
    def uid(self) -> int: ...

    @property
    def gid(self) -> int: ...

    @property
    def groups(self) -> tuple[int, ...]: ...


@contextlib.contextmanager
def as_user(user: RightsUser) -> Iterator[None]:
    """Act with only the user's rights on files. The real user stays root."""
    before = os.getgroups()
    # In this order: after the change of user the groups could not be set.
    os.setgroups(user.groups)
    os.setegid(user.gid)
    os.seteuid(user.uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(before)


_USER_OBJ, _USER, _GROUP_OBJ, _MASK, _OTHER = 0x01, 0x02, 0x04, 0x10, 0x20  # linux/posix_acl.h
_ACL_VERSION = 2
_NOBODY = 0xFFFFFFFF
_NO_ACL = {errno.EOPNOTSUPP, errno.EPERM, errno.EINVAL}


def let_run(descriptor: int, uid: int) -> bool:
    """Let one user read and execute a file of root's (acl(5)). False if the file system has no
    ACLs.
    """
    entries = ((_USER_OBJ, 5, _NOBODY), (_USER, 5, uid), (_GROUP_OBJ, 0, _NOBODY),
               (_MASK, 5, _NOBODY), (_OTHER, 0, _NOBODY))  # fmt: skip
    packed = b"".join(struct.pack("<HHI", *entry) for entry in entries)
    try:
        os.setxattr(descriptor, "system.posix_acl_access", struct.pack("<I", _ACL_VERSION) + packed)
    except OSError as error:
        if error.errno in _NO_ACL:
            return False
        raise
    return True
