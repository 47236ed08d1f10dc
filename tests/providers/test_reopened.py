"""A connection that is opened again after its credentials were refused."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from slurm_elastic.base.errors import AuthError
from slurm_elastic.providers.base.reopened import Reopened


@contextlib.contextmanager
def plain() -> Iterator[None]:
    yield


def connection() -> tuple[Reopened[object], list[object]]:
    opened: list[object] = []

    def open_() -> object:
        opened.append(object())
        return opened[-1]

    return Reopened(open_, plain), opened


def test_it_is_opened_once_and_again_after_an_auth_error() -> None:
    reopened, opened = connection()
    for _ in range(2):
        with reopened.used() as used:
            assert used is opened[-1]
    assert len(opened) == 1
    refuse(reopened)
    with reopened.used() as used:
        assert used is opened[1]


def refuse(reopened: Reopened[object]) -> None:
    with pytest.raises(AuthError), reopened.used():
        raise AuthError("aws", "Expired", "it has expired")


def test_a_late_error_of_the_old_connection_drops_no_new_one() -> None:
    reopened, opened = connection()
    late = contextlib.ExitStack()
    late.enter_context(reopened.used())
    # Another thread meets the error before, and works with the renewed credentials already.
    refuse(reopened)
    with reopened.used() as new:
        pass
    error = AuthError("aws", "Expired", "it has expired")
    with pytest.raises(AuthError), late:
        raise error
    with reopened.used() as used:
        assert used is new
    assert len(opened) == 2
