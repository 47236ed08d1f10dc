"""The services' environment and credentials, for commands that ask clouds as the services do."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from slurm_elastic.cli.arguments import DEFAULT_CONFIG
from slurm_elastic.config import Config
from slurm_elastic.model.finding import Finding
from slurm_elastic.watch.doctor.environment import of_the_services


@contextlib.contextmanager
def as_the_services(file: Path, config: Config) -> Iterator[Finding | None]:
    """Take on the services' environment inside the block; yields a finding about it, or None.

    It does nothing unless ``file`` is the configuration that the systemd units name: the services
    of a sandbox have another environment.
    """
    if Path(file) != Path(DEFAULT_CONFIG):
        yield None
        return
    with of_the_services(config.slurm.user) as finding:
        yield finding
