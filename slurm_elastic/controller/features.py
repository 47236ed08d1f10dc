"""The optional features of slurm-elasticd, each asked once which steps it joins at this site."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.base.extras import missing_module
from slurm_elastic.controller.context import Site
from slurm_elastic.controller.steps import Steps
from slurm_elastic.features import addresses, admission, owners, starting, telling, tunnels


def munge_keys(site: Site) -> Steps | None:
    """Who brings the munge key to machines; nobody where it is part of their image."""
    ssh = site.config.join.ssh
    if ssh is None:
        return None
    try:
        from slurm_elastic.features.munge_keys import MungeKeys
    except ModuleNotFoundError as error:
        raise ConfigError(f"join.ssh: {missing_module(error, 'ssh')}") from error
    # Its threads tell each failed connection with a traceback; we tell it in a line.
    logging.getLogger("paramiko").setLevel(logging.CRITICAL)
    return Steps(parts=[("keys", lambda worker: MungeKeys(site, ssh, own=worker))])


Feature = Callable[[Site], Steps | None]
FEATURES: tuple[Feature, ...] = (
    admission.join,
    owners.join,
    starting.join,
    addresses.join,
    telling.join,
    munge_keys,
    tunnels.join,
)


def join(site: Site, features: Sequence[Feature] = FEATURES) -> None:
    """Ask each of them; what has joined is in ``site.steps``."""
    site.steps.join([found for feature in features if (found := feature(site)) is not None])
