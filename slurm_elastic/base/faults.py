"""Named points at which a test may kill the process.

``SLURM_ELASTIC_FAULT=launch.after-intent`` names a point. Each point stands between two steps of a
launch, a suspend, a refusal (no offer left), the end of a hold, a migration or a save of a
suspended job. SIGKILL ends the process there, as a crash would. The tests then prove that a restart
repairs everything. If ``SLURM_ELASTIC_FAULT_ONCE=FILE`` is set, the point fires only if FILE does
not exist yet, and creates it. With ``SLURM_ELASTIC_FAULT_SIGNAL=STOP`` the process stands still
there until it gets SIGCONT.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

POINTS = (
    "launch.before-intent",
    "launch.after-intent",
    "launch.after-call",
    "launch.after-result",
    "launch.after-slurm",
    "suspend.before-intent",
    "suspend.after-intent",
    "suspend.after-call",
    "suspend.after-result",
    "stop.before-intent",
    "stop.after-intent",
    "stop.after-call",
    "stop.after-result",
    "start.before-intent",
    "start.after-intent",
    "start.after-call",
    "start.after-result",
    "refuse.before-hold",
    "refuse.after-hold",
    "refuse.after-drain",
    "refuse.lifted",
    "refuse.before-force",
    "refuse.after-force",
    "refuse.after-settle",
    "refuse.after-hurry",
    "refuse.put-back",
    "release.before-resume",
    "release.after-resume",
    "release.after-forget",
    "notice.after-record",
    "migration.planned",
    "migration.drained",
    "migration.before-save",
    "migration.after-save",
    "migration.saved",
    "migration.before-requeue",
    "migration.after-requeue",
    "migration.requeued",
    "migration.hurried",
    "suspended.before-resume",
    "suspended.resumed",
    "suspended.again",
)


def reach(point: str) -> None:
    """Die or stand still here, if the environment names this point."""
    if os.environ.get("SLURM_ELASTIC_FAULT") != point:
        return
    once_file = os.environ.get("SLURM_ELASTIC_FAULT_ONCE")
    if once_file:
        if Path(once_file).exists():
            return
        Path(once_file).touch()
    stands_still = os.environ.get("SLURM_ELASTIC_FAULT_SIGNAL") == "STOP"
    # To this thread: if another thread took the signal, this one would run on for a moment.
    signal.raise_signal(signal.SIGSTOP if stands_still else signal.SIGKILL)
