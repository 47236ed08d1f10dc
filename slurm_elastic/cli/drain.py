"""``slurm-elastic drain``: machines leave, and nothing new starts there."""

from __future__ import annotations

import functools

from slurm_elastic.cli.departure_orders import add_leaving, add_subject, leave
from slurm_elastic.cli.giving_orders import Subparsers, add_command, add_options


def add(subparsers: Subparsers) -> None:
    parser = add_command(
        subparsers,
        "drain",
        "Have the machines of a cloud, a pool or some nodes leave when their jobs have ended, and "
        "start nothing new there until `slurm-elastic resume`. With --aggressive jobs are saved "
        "and requeued, and not waited for.",
        "slurm-elastic drain pub[1-4] --reason 'disk errors'",
        "slurm-elastic drain aws --aggressive --at 22:00 --dry-run",
        run=functools.partial(leave, "drain"),
    )
    add_subject(parser)
    add_leaving(parser)
    add_options(parser)
