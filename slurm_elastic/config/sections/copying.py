"""The section ``copy``, and what clouds say of data: how jobs' files get to machines and back."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct, field

from slurm_elastic.config.basics.numbers import Mebibytes, PerHour, Seconds

Megabits = Annotated[float, Meta(gt=0)]


class Data(StrEnum):
    """Whether a cloud's machines share the head's file systems, or files are copied."""

    SHARED = "shared"
    COPY = "copy"


class Traffic(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The prices of a cloud's traffic ($ per GB of 10^9 bytes), and its bandwidth (Mbit/s)."""

    into: PerHour = field(name="in", default=0.0)
    """Change it when the cloud charges for data that comes in."""
    out: PerHour = 0.0
    """Change it when the cloud charges for data that leaves, as public clouds do."""
    bandwidth: Megabits | None = None
    """Change it when jobs bring much data, and machines wait for it: the speed between the head and
    the cloud.
    """


class CopySettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Copies of jobs' files (``data: copy`` of a cloud)."""

    size_limit: Mebibytes = 10240
    """Change it when jobs have larger directories, or the way to the cloud is slow."""
    exclude: tuple[str, ...] = (".ssh",)
    """Change it when other files are useless on machines; these stay as they are on both sides."""
    out_within: Seconds = 3600.0
    """Change it when a directory needs longer than an hour to get to its machine."""
    back_within: Seconds = 600.0
    """Change it when results need longer than ten minutes to come back; a machine is paid for that
    time.
    """
    outputs_every: Seconds = 60.0
    """Change it when users should see the output of running jobs sooner, or less traffic matters
    more.
    """
    socket: str = "/run/slurm-elastic-copier/copier.sock"
    """Change it when two clusters have their head on one host."""
