"""The release of Slurm on this host, according to its programs."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from slurm_elastic.base.errors import ConfigError, SlurmError
from slurm_elastic.slurm.client import answers
from slurm_elastic.slurm.client.command import output

if TYPE_CHECKING:  # the hub, which runs as root, reads slurm.conf without the configuration
    from slurm_elastic.config import SlurmSettings


def release_of(settings: SlurmSettings) -> tuple[int, int]:
    """Slurm's release as (22, 5). ConfigError if both programs fail."""
    return _release(
        settings,
        (f"{settings.sbin_dir}/slurmctld", "-V"),
        (f"{settings.bin_dir}/sinfo", "--version"),
    )


@functools.cache
def installed_release() -> tuple[int, int]:
    """The release of the Slurm in the directories of a distribution's package."""
    from slurm_elastic.config import SlurmSettings

    return release_of(SlurmSettings())


def _release(settings: SlurmSettings, *commands: Sequence[str]) -> tuple[int, int]:
    errors = []
    for command in commands:
        try:
            return answers.version(output(command, settings))
        except (SlurmError, ValueError) as error:
            errors.append(f"{' '.join(command)}: {error}")
    raise ConfigError(f"cannot find out Slurm's version: {'; '.join(errors)}")
