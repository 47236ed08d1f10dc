"""``slurm-elastic drain``: empty machines after their jobs, and start no new ones."""

from __future__ import annotations

import functools

from slurm_elastic.cli.orders.departure_orders import add_leaving, add_subject, leave
from slurm_elastic.cli.orders.giving_orders import Subparsers, add_command, add_options


def add(subparsers: Subparsers) -> None:
    parser = add_command(
        subparsers,
        "drain",
        "End the machines of a cloud, a pool or some nodes when their jobs have ended, and start "
        "no new ones there until `slurm-elastic resume`. --aggressive saves and requeues the jobs "
        "instead of waiting for their end.",
        "slurm-elastic drain pub[1-4] --reason 'disk errors'",
        "slurm-elastic drain aws --aggressive --at 22:00 --dry-run",
        run=functools.partial(leave, "drain"),
    )
    add_subject(parser)
    add_leaving(parser)
    add_options(parser)
