"""The optional features of slurm-elasticd, in the order in which they join the core."""

from __future__ import annotations

import logging

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.base.extras import missing_module
from slurm_elastic.controller.context import Site
from slurm_elastic.controller.extensions import Extensions, Feature
from slurm_elastic.features.files import copy_part
from slurm_elastic.features.growth import autoscaler, expiry
from slurm_elastic.features.money import admission, reservation_ends, usage_record
from slurm_elastic.features.network import addresses, tunnels
from slurm_elastic.features.news import account_mails, telling
from slurm_elastic.features.orders import cloud_order, directives, image_replacement, owners
from slurm_elastic.features.power import hypervisors, starting, stopping
from slurm_elastic.features.waits import wait_notes


def munge_keys(site: Site) -> Extensions | None:
    """Join if the head brings the munge key to machines, that is if no image contains it."""
    ssh = site.config.join.ssh
    if ssh is None:
        return None
    try:
        from slurm_elastic.features.network.munge_keys import MungeKeys
    except ModuleNotFoundError as error:
        raise ConfigError(f"join.ssh: {missing_module(error, 'ssh')}") from error
    # paramiko's threads log each failed connection with a traceback; we log it in one line.
    logging.getLogger("paramiko").setLevel(logging.CRITICAL)
    return Extensions(parts=[("keys", lambda worker: MungeKeys(site, ssh, task_executor=worker))])


FEATURES: tuple[Feature, ...] = (
    directives.join,
    cloud_order.join,
    wait_notes.join,
    autoscaler.join,
    usage_record.join,
    expiry.join,
    hypervisors.join,
    admission.join,
    owners.join,
    reservation_ends.join,
    stopping.join,
    starting.join,
    addresses.join,
    image_replacement.join,
    telling.join,
    account_mails.join,
    munge_keys,
    tunnels.join,
    copy_part.join,
)
