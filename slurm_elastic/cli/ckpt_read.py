"""Reading slurm-elastic-ckptman's memory for commands, which may run as anybody."""

from __future__ import annotations

import contextlib

from slurm_elastic.ckptman.service import SERVICE
from slurm_elastic.ckptstate import FILE, CheckpointState
from slurm_elastic.config import Config
from slurm_elastic.heartbeat import process_exists
from slurm_elastic.ledger import Ledger
from slurm_elastic.view.checkpoints import CheckpointFacts

DAY = 86400.0


def read_checkpoints(config: Config, now: float) -> CheckpointFacts | None:
    """None where the service has never run; OSError, sqlite3.Error and SlurmElasticError pass."""
    path = config.state / FILE
    if not path.exists():
        return None
    with contextlib.closing(CheckpointState(path, read_only=True)) as state:
        images, warned = state.images(), state.notices()
        rescues = state.rescues(since=now - DAY)
    with contextlib.closing(Ledger(config.state / "ledger.db", read_only=True)) as ledger:
        beat = ledger.heartbeat(SERVICE)
    found = None if beat is None else process_exists(beat[1])
    return CheckpointFacts(
        heartbeat=beat, process_found=found, images=images, warned=warned, rescues=rescues
    )
