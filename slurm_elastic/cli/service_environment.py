"""Commands that ask clouds for the services: in their environment, with their credentials."""

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
    """Have the services' environment meanwhile, and a finding about it; only with the configuration
    that the units name: a sandbox's services have another one.
    """
    if Path(file) != Path(DEFAULT_CONFIG):
        yield None
        return
    with of_the_services(config.slurm.user) as finding:
        yield finding
