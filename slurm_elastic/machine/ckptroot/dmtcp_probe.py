"""Whether DMTCP on this node can save processes of different hosts (it needs two changes)."""

from __future__ import annotations

from .caller import Caller
from .site import HelperSite


def check(site: HelperSite, caller: Caller, digest: str) -> None:
    """Refused if it cannot."""
