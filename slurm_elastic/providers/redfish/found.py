"""Hosts with Redfish: that there are some is told by the file of their BMCs' account."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from slurm_elastic.config.found import Found, SearchPlace
from slurm_elastic.model.cluster import Location

CREDENTIALS = Path("/etc/slurm-elastic/bmc.json")


def found(place: SearchPlace) -> Iterator[Found]:
    """Which host is at which BMC, nobody can see from here."""
    del place
    if CREDENTIALS.exists():
        yield Found(
            name="rack", provider="redfish", location=Location.ON_PREMISES, usable=True,
            what=f"BMCs, by the account in {CREDENTIALS}", keys={"credentials": str(CREDENTIALS)},
            sized=True, by_node=True,
            reads={str(CREDENTIALS): "chown {user} {path}; chmod 600 {path}"},
        )  # fmt: skip
