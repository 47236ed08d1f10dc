"""Which address of a domain is believed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from slurm_elastic.providers.libvirt import domains
from slurm_elastic.providers.libvirt.hosts import bindings

RANGES = ("10.1.0.0/16", "fd00::/64")


class StubDomain:
    """What libvirt says by each source."""

    def __init__(self, leases: tuple[str, ...], neighbours: tuple[str, ...]) -> None:
        libvirt = bindings()
        self.addresses = {
            libvirt.VIR_DOMAIN_INTERFACE_ADDRESSES_SRC_LEASE: leases,
            libvirt.VIR_DOMAIN_INTERFACE_ADDRESSES_SRC_ARP: neighbours,
        }

    def interfaceAddresses(self, source: int) -> Mapping[str, Any]:  # noqa: N802 - libvirt's name
        return {"vnet0": {"addrs": [{"addr": a} for a in self.addresses[source]]}}


@pytest.mark.parametrize(
    ("leases", "neighbours", "ranges", "address"),
    [
        (("192.168.122.5",), ("10.1.0.9",), RANGES, "192.168.122.5"),
        ((), ("10.0.0.1", "10.1.0.9"), RANGES, "10.1.0.9"),
        ((), ("10.0.0.1",), RANGES, None),
        ((), ("fd00::9",), RANGES, "fd00::9"),
        ((), ("10.1.0.9",), (), None),
    ],
)
def test_an_address_of_the_neighbours_counts_only_in_the_machines_ranges(
    leases: tuple[str, ...], neighbours: tuple[str, ...], ranges: tuple[str, ...],
    address: str | None,
) -> None:  # fmt: skip
    assert domains.address(StubDomain(leases, neighbours), ranges) == address
