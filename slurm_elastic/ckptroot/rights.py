"""The user's rights on files, for so long as we touch his."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator


@contextlib.contextmanager
def as_user(uid: int, gid: int, groups: tuple[int, ...]) -> Iterator[None]:
    """With the user's rights on files, and no more. Our real user stays root."""
    before = os.getgroups()
    os.setgroups(groups)
    os.setegid(gid)
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(before)
