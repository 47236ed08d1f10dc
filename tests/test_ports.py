"""Daemons of tests that come up at once have ports of their own."""

from __future__ import annotations

import os

import pytest

from tests import ports


def test_a_port_that_was_given_is_not_given_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody listens there yet: its daemon may take its time."""
    begin = 20_000 + os.getpid() % 200 * 40  # another suite's run of this has others
    monkeypatch.setattr(ports, "RANGE", range(begin, begin + 40))
    first = ports.free_ports(20)
    assert first
    assert not set(first) & set(ports.free_ports(40))
