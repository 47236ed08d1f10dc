"""The slurm.conf that a configuration names, read as the Slurm of that configuration does."""

from __future__ import annotations

from slurm_elastic.config import SlurmSettings
from slurm_elastic.slurm.client import siteconf
from slurm_elastic.slurm.client.release import release_of
from slurm_elastic.slurm.client.siteconf import SiteConf


def read_site(settings: SlurmSettings, *, ignore: str | None = None) -> SiteConf:
    """slurm.conf with all includes except ``ignore``. ConfigError names file and line."""
    return siteconf.read(settings.conf, ignore=ignore, release=lambda: release_of(settings))
