"""Tests cannot reach beyond this machine."""

from __future__ import annotations

import socket

import pytest


def test_an_address_of_the_internet_is_refused() -> None:
    with socket.socket() as client, pytest.raises(PermissionError, match="a test would connect"):
        client.connect(("8.8.8.8", 53))


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
def test_this_machine_may_be_asked(host: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as client:
        client.settimeout(5.0)
        assert client.connect_ex((host, 9)) != 0  # nobody listens, and nothing is raised
