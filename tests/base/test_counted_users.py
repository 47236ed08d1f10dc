"""As which user a uid counts."""

from __future__ import annotations

import os

import pytest

from slurm_elastic.base import counted_users
from slurm_elastic.base.counted_users import NO_ACCOUNT, CountedUsers

NO_UIDS = range(2_000_000_000, 2_000_010_000)


def test_all_uids_without_an_account_count_as_one_user() -> None:
    users = CountedUsers()
    assert users.cached(os.getuid()) is None
    assert [users.look_up(uid) for uid in (0, NO_UIDS[0], NO_UIDS[1])] == [
        0,
        NO_ACCOUNT,
        NO_ACCOUNT,
    ]
    assert [users.cached(uid) for uid in (0, NO_UIDS[1], NO_UIDS[2])] == [0, NO_ACCOUNT, None]


def test_one_who_comes_as_many_takes_no_memory_and_puts_no_account_out() -> None:
    users = CountedUsers(lambda uid: uid < NO_UIDS[0])
    for uid in (7, *NO_UIDS):
        users.look_up(uid)
    assert len(users._without_account) <= 4096
    assert users.cached(7) == 7


def test_a_new_account_is_known_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    now, accounts = 1000.0, set[int]()
    users = CountedUsers(accounts.__contains__)
    monkeypatch.setattr(counted_users.time, "monotonic", lambda: now)
    assert users.look_up(7) == NO_ACCOUNT
    accounts.add(7)
    now += 61
    assert users.cached(7) is None
    assert users.look_up(7) == 7
    now += 3000
    assert users.cached(7) == 7
