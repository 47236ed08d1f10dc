"""Hosts for the tests of the libvirt provider: a libvirtd of their own, a server in front of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from libvirt_hosts import QEMU, Daemon, running_libvirtd, running_proxy
from needs import missing

from .bed import LibvirtBed


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with running_libvirtd() as running:
        yield running


@pytest.fixture
def bed(daemon: Daemon, tmp_path: Path) -> Iterator[LibvirtBed]:
    """A host of the test driver."""
    daemon.renew()
    with running_proxy(tmp_path / "libvirt-sock", daemon.socket) as proxy:
        made = LibvirtBed(daemon, proxy, "test", tmp_path)
        yield made
        made.close()


@pytest.fixture
def qemu(daemon: Daemon, tmp_path: Path) -> Iterator[LibvirtBed]:
    """A host with qemu's emulation."""
    if QEMU is None:
        pytest.skip(missing("qemu-system-x86_64"))
    daemon.renew()
    with running_proxy(tmp_path / "libvirt-sock", daemon.socket) as proxy:
        made = LibvirtBed(daemon, proxy, "qemu", tmp_path)
        yield made
        made.close()
