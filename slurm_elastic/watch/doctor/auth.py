"""The keys of auth/slurm: whether machines get the right secret, and whether keys expire soon."""

from __future__ import annotations

from collections.abc import Iterator

from slurm_elastic.base.errors import ConfigError, reason_of
from slurm_elastic.base.pages import page
from slurm_elastic.base.units import counted
from slurm_elastic.config import Config
from slurm_elastic.model.finding import Finding, FindingLevel
from slurm_elastic.slurm.client.site import read_site
from slurm_elastic.slurm.conf import authentication, keyset
from slurm_elastic.slurm.conf.keyset import AuthKey, KeySet

EXPIRY_NOTICE_S = 7 * 86400.0  # a key that expires within this time is reported
FILE = "slurm.jwks"


def examine(config: Config, now: float) -> Iterator[Finding]:
    """Yield the findings on the keys.

    With another AuthType only a wrong secret is reported. Keys that we may not read are skipped.
    """
    try:
        site = read_site(config.slurm)
    except (ConfigError, OSError):
        return
    if wrong := authentication.wrong_secret(config, site):
        yield Finding.wrong(
            "join.ssh",
            wrong,
            expected="the secret by which slurmctld knows its nodes",
            advice=f"give join.ssh the other one ({page('keys')})",
        )
    if authentication.kind(site) != authentication.SLURM:
        return
    path = site.directory / FILE
    try:
        keys = keyset.read(path)
    except FileNotFoundError:
        yield Finding.note(FILE, "not there: slurm.key never expires")
    except PermissionError:
        return
    except (OSError, ConfigError) as error:
        yield Finding.wrong(
            FILE,
            f"{path} cannot be used: {reason_of(error)}",
            expected='JSON: {"keys": [{"kid": ..., "exp": ...}]}',
        )
    else:
        yield from _keys(config, keys, now)


def _keys(config: Config, keys: KeySet, now: float) -> Iterator[Finding]:
    clouds = [cloud.name for cloud in config.clouds if cloud.by_user_data]
    expiring_keys = [
        key for key in _used(keys, clouds) if key.exp and key.exp - now < EXPIRY_NOTICE_S
    ]
    for key in expiring_keys:
        yield _expiry(key, now)
    if clouds_without_key := sorted(set(clouds) - {key.cloud for key in keys.keys}):
        yield Finding.note(
            FILE,
            f"no key of its own: {', '.join(clouds_without_key)}",
            expected="a key for each cloud, so that Slurm can distinguish its machines",
            advice="slurm-elastic key rotate",
        )
    elif not expiring_keys:
        yield Finding.ok(FILE, f"{counted(len(keys.keys), 'key')}, none in use ends in a week")


def _used(keys: KeySet, clouds: list[str]) -> list[AuthKey]:
    """Return the keys in use and the site's own keys; not keys that a rotation lets expire."""
    used_kids = {keys.default.kid}
    for cloud in clouds:
        cloud_keys = [key.kid for key in keys.keys if key.cloud == cloud]
        # The machines of a cloud sign with the last of its keys.
        used_kids |= set(cloud_keys[-1:])
    return [key for key in keys.keys if key.kid in used_kids or not key.ours]


def _expiry(key: AuthKey, now: float) -> Finding:
    left_s = (key.exp or 0) - now
    return Finding(
        subject=f"{FILE}: key {key.kid}",
        level=FindingLevel.WRONG if left_s <= 0 else FindingLevel.NOTE,
        observed="it has expired" if left_s <= 0 else f"it expires in {left_s / 86400:.1f} days",
        expected="keys that hold for longer than a week",
        advice=f"slurm-elastic key rotate: Slurm loses nodes with an expired key ({page('keys')})",
    )
