"""Who is told what: the sections ``metrics`` and ``notify``, as frozen values."""

from __future__ import annotations

from msgspec import Struct


class Metrics(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``listen``: where slurm-elasticd serves ``/metrics``, on loopback; None: it does not."""

    listen: str | None = None
