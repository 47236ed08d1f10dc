"""``slurm-elastic-copier``: the root service that copies jobs' files as the jobs' users."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from slurm_elastic.base.errors import ConfigError, SlurmElasticError
from slurm_elastic.base.processes.signals import accept_ends, on_end
from slurm_elastic.cli.arguments import add_config
from slurm_elastic.cli.helptext import Command, examples
from slurm_elastic.cli.services.root_service import uid_of
from slurm_elastic.cli.streams import log_plainly, prepare, visible
from slurm_elastic.config import configfile
from slurm_elastic.machine.jobfiles.copier import Copier


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM. Exit 2: wrong configuration or not root; 1: another error."""
    accept_ends()
    prepare()
    arguments = parser().parse_args(argv)
    log_plainly(logging.INFO)
    try:
        if os.geteuid() != 0:
            raise ConfigError("this is for root: systemd starts it")
        config = configfile.load(arguments.config)
        copier = Copier(Path(config.copy.socket), {0, uid_of(config)})
    except (SlurmElasticError, OSError) as error:
        print(f"slurm-elastic-copier: {visible(str(error))}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    on_end(copier.end)
    copier.serve()
    return 0


def parser() -> argparse.ArgumentParser:
    command = Command(
        prog="slurm-elastic-copier",
        description="Copy the files of jobs to and from machines that share no file system with"
        " the head (data: copy), as the jobs' users. slurm-elasticd decides what is copied.",
        epilog=examples("slurm-elastic-copier --config /etc/slurm-elastic/slurm-elastic.yaml"),
    )
    add_config(command)
    return command


if __name__ == "__main__":
    sys.exit(main())
