"""How the site's daemons authenticate each other (AuthType), and whether machines can, too."""

from __future__ import annotations

from collections.abc import Iterator

from slurm_elastic.config import Config
from slurm_elastic.slurm.client.siteconf import SiteConf

SLURM = "auth/slurm"  # Slurm 23.11 and later: keys with an id and an end, no munge


def kind(site: SiteConf) -> str:
    """The AuthType, with Slurm's own default."""
    entry = site.option("AuthType")
    return "auth/munge" if entry is None else entry.value.lower()


def wrong_secret(config: Config, site: SiteConf) -> str:
    """Why machines cannot use the secret that they get by SSH. Empty if they can, or if the secret
    comes another way.
    """
    ssh = config.join.ssh
    if ssh is None or (ssh.slurm_keys is not None) == (kind(site) == SLURM):
        return ""
    has, needs = ("slurm_keys", "munge_key") if ssh.slurm_keys else ("munge_key", "slurm_keys")
    return f"AuthType is {kind(site)}: join.ssh brings {has}, machines need {needs}"


def notices(config: Config, site: SiteConf) -> Iterator[str]:
    """Sentences about authentication for an admin to read before slurm-elastic is installed."""
    if wrong := wrong_secret(config, site):
        yield f"{wrong}, or cannot join"
    if kind(site) != SLURM:
        return
    cred = site.option("CredType")
    if cred is None or cred.value.lower() != "cred/slurm":
        yield "AuthType is auth/slurm: CredType must be cred/slurm, or machines need munge, too"
    if config.join.head is not None and config.join.ssh is None:
        yield (
            f"AuthType is {SLURM}: the image needs its cloud's keys as /etc/slurm/slurm.jwks"
            " (slurm-elastic key show CLOUD), or they come by SSH (join.ssh.slurm_keys)"
        )
