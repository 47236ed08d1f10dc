"""Whether slurm-elasticd can make the socket on which users ask it."""

from __future__ import annotations

import os
from collections.abc import Iterator

from slurm_elastic.base.account import acting_as
from slurm_elastic.config import DEFAULT_SOCKET, Config


def notices(config: Config) -> Iterator[str]:
    """A sentence if SlurmUser, as whom slurm-elasticd runs, may not write the socket's directory.

    systemd makes the directory of the usual socket. Only root can look with SlurmUser's rights.
    """
    path, user = config.read_socket, config.slurm.user
    if path == DEFAULT_SOCKET or os.geteuid() != 0 or not path.parent.is_dir():
        return
    with acting_as(user):
        # Not the real ids, which stay root's.
        is_writable = os.access(path.parent, os.W_OK | os.X_OK, effective_ids=True)
    if not is_writable:
        yield (
            f"{path.parent}: {user} may not write this directory, so slurm-elasticd cannot make"
            f" {path.name} there, the socket on which users ask it; set users.socket or state_dir"
            f" to a place in a directory that {user} may write"
        )
