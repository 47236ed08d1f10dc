"""The section ``accounting``: where costs are recorded besides the ledger."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct


class OwnerTag(StrEnum):
    """Facts about a machine's jobs that its tags may have."""

    ACCOUNT = "account"
    USER = "user"


class BooksSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Tags of machines, notes in slurmdbd, and weights of TRES ``billing``."""

    tags: tuple[OwnerTag, ...] = (OwnerTag.ACCOUNT, OwnerTag.USER)
    """Change it when the cloud's own bill should be split by other tags, or user names must not
    leave the site.
    """
    admin_comment: bool = False
    """Change it when `sacct` should show what a job cost."""
    billing_unit: Annotated[float, Meta(gt=0)] | None = None
    """Change it when Slurm's own fair share and limits should count the price of cloud nodes."""
