"""The section ``books`` of the configuration: where else than in the ledger costs are written."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct


class Owner(StrEnum):
    """The facts that a machine's tags may tell about the jobs that it was launched for."""

    ACCOUNT = "account"
    USER = "user"


class BooksSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``tags``: what machines are tagged with at their launch where all of its jobs agree.
    ``admin_comment``: a job's cost is noted in its AdminComment after its end. ``billing_unit``:
    the dollars an hour that one unit of Slurm's TRES ``billing`` stands for, in the
    TRESBillingWeights of the clouds' partitions; None: they get none.
    """

    tags: tuple[Owner, ...] = (Owner.ACCOUNT, Owner.USER)
    admin_comment: bool = False
    billing_unit: Annotated[float, Meta(gt=0)] | None = None
