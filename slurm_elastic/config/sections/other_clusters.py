"""The section ``clusters``: other clusters, which ``status --clusters`` shows beside this one."""

from __future__ import annotations

from msgspec import Struct

from slurm_elastic.config.basics.numbers import Seconds


class OtherCluster(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Another cluster with slurm-elastic, read by SSH on its head or from a file."""

    name: str
    """Change it when the cluster's row should have another name."""
    ssh: str | None = None
    """Change it when the head has another name or user: `head.example.org`, `me@head`, or a Host of
    ssh_config. The user who runs the command needs a key that works without a question.
    """
    command: str = "slurm-elastic status --json"
    """Change it when the head has slurm-elastic elsewhere."""
    file: str | None = None
    """Change it when the head writes its `status --json` to a file instead, such as on a share."""
    timeout: Seconds = 15.0
    """Change it when a head is slow or far away."""
