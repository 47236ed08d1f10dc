"""Finds hosts with Redfish, by the file with their BMCs' account."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from slurm_elastic.config.found import Found, SearchPlace
from slurm_elastic.model.cluster import Location

CREDENTIALS = Path("/etc/slurm-elastic/bmc.json")


def found(place: SearchPlace) -> Iterator[Found]:
    """One entry without hosts: only the administrator knows which host has which BMC."""
    del place
    if CREDENTIALS.exists():
        yield Found(
            name="rack", provider="redfish", location=Location.ON_PREMISES, usable=True,
            what=f"BMCs, by the account in {CREDENTIALS}",
            keys={"credentials_file": str(CREDENTIALS)},
            sized=True, by_node=True,
            reads={str(CREDENTIALS): "chown {user} {path}; chmod 600 {path}"},
        )  # fmt: skip
