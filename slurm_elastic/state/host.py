"""Reads how this host is recognised, so that a journal notices that it was copied to another."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from slurm_elastic.model.journal_owner import Host

_ROOT = Path("/")


def read_host(root: Path = _ROOT) -> Host:
    """Return the description of this host. SlurmUser and root read the same."""
    return Host(
        name=os.uname().nodename,
        machine=_text(root / "etc/machine-id"),
        cards=tuple(sorted(_cards(root / "sys/class/net"))),
    )


def _cards(interfaces: Path) -> set[str]:
    """The addresses of the devices among the interfaces. The address of a bridge, a tunnel or a
    container's interface may be another one after each boot.
    """
    with contextlib.suppress(OSError):
        cards = [path for path in interfaces.iterdir() if (path / "device").exists()]
        return {_address(card) for card in cards} - {""}
    return set()


def _address(card: Path) -> str:
    """The card's own address. A card in a bond shows the bond's address as its ``address``, which
    is the one of whichever card came first at this boot.
    """
    return _text(card / "bonding_slave/perm_hwaddr") or _text(card / "address")


def _text(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text(encoding="ascii", errors="replace").strip()
    return ""
