"""Finds the user that a uid counts as, wherever each user may take only a number of places.

A user has a range of uids beside their own (subuid(5)) and can connect as each of them. No account
has those uids, so all uids without an account count as one user.
"""

from __future__ import annotations

import pwd
import time
from collections.abc import Callable

NO_ACCOUNT = -2
"""The user as whom all uids without an account count; no uid is negative."""
_ACCOUNT_TTL_S, _NO_ACCOUNT_TTL_S = 3600.0, 60.0
_MAX_WITHOUT_ACCOUNT = 4096
"""How many uids without an account are cached: one user may have millions."""


def has_account(uid: int) -> bool:
    """Whether the host knows this uid. It may wait for a directory server (nsswitch.conf(5))."""
    try:
        pwd.getpwuid(uid)
    except KeyError:
        return False
    return True


class CountedUsers:
    """Looks uids up, and caches the answers."""

    def __init__(self, has_account: Callable[[int], bool] = has_account) -> None:
        self._has_account = has_account
        self._accounts: dict[int, float] = {}
        self._without_account: dict[int, float] = {}

    def cached(self, uid: int) -> int | None:
        """The user that ``uid`` counts as; None if it was not looked up lately."""
        now = time.monotonic()
        if self._accounts.get(uid, 0.0) > now:
            return uid
        return NO_ACCOUNT if self._without_account.get(uid, 0.0) > now else None

    def look_up(self, uid: int) -> int:
        """Look up the user that ``uid`` counts as. This may wait for a directory server."""
        now = time.monotonic()
        if self._has_account(uid):
            self._accounts[uid] = now + _ACCOUNT_TTL_S
            return uid
        # In a cache of their own, so that a user's many uids do not put the accounts out.
        if len(self._without_account) >= _MAX_WITHOUT_ACCOUNT:
            self._without_account.clear()
        self._without_account[uid] = now + _NO_ACCOUNT_TTL_S
        return NO_ACCOUNT
