"""Writes out the values that clouds and pools take from the wider sections and from defaults."""

from __future__ import annotations

from typing import TypeVar

from msgspec.structs import asdict, replace

from slurm_elastic.config import Config, PoolSettings, max_age
from slurm_elastic.config.clouds import CloudSettings
from slurm_elastic.config.pool_rules import BOOT
from slurm_elastic.config.sections.policies import Policies

T = TypeVar("T", bound=Policies)

_DEFAULTS = Policies(growth="slurm", billing_increment=1.0, expected_boot_time=float(BOOT))
"""The values if no section sets any. Without ``release``, Slurm's SuspendTime decides."""


def effective(config: Config) -> Config:
    """Return the configuration with every value of each cloud and pool written out."""
    site = _filled(config.policies, _DEFAULTS)
    clouds = tuple(_cloud(config, cloud, site) for cloud in config.clouds)
    whole = replace(config, policies=site, clouds=clouds)
    return replace(whole, pools=tuple(_pool(whole, pool) for pool in config.pools))


def _cloud(config: Config, cloud: CloudSettings, site: Policies) -> CloudSettings:
    return replace(
        cloud,
        partition=cloud.partition_name,
        suspend_time=config.suspend_time(cloud),
        resume_timeout=config.resume_timeout(cloud),
        suspend_timeout=config.suspend_timeout(cloud),
        allow=config.who_of(cloud),
        policies=_filled(cloud.policies, site),
    )


def _pool(config: Config, pool: PoolSettings) -> PoolSettings:
    return replace(
        pool,
        real_memory=pool.slurm_memory,
        max_age=max_age(config, pool),
        policies=_filled(pool.policies, config.cloud(pool.cloud).policies),
    )


def _filled(section: T, wider: Policies) -> T:
    """Take the keys that this section leaves out from the wider section."""
    missing_keys = [
        name for name in Policies.__struct_fields__ if getattr(section, name) in (None, ())
    ]
    return replace(section, **{k: v for k, v in asdict(wider).items() if k in missing_keys})
