"""The joining world at a site without munge: auth/slurm, with a key for each cloud."""

from __future__ import annotations

from typing import Any

from slurm_elastic.slurm.conf import keyset
from slurm_elastic.slurm.conf.keyset import AuthKey, KeySet

from .ec2_world import Ec2World
from .engine import Engine
from .joining_world import AWS, Hypervisor, JoiningWorld
from .world import SITE_CONF, Host

HEAD_KEYS = "/etc/slurm/slurm.jwks"
MACHINE_KEYS = "/etc/slurm/slurm.jwks"
HUP_HEAD = "kill -HUP $(cat /run/slurm/slurmctld.pid)"
HUP_MACHINE = "kill -HUP $(cat /run/slurm/slurmd.pid)"


def first_keys() -> KeySet:
    """The first keys of a site: one of its own, and one for each of two clouds."""
    site = keyset.of_slurm_key(b"the site's own key, of 32 bytes.").default
    clouds = [
        AuthKey(alg="HS256", kty="oct", kid=f"slurm-elastic:{cloud}:1", k=letter * 64)
        for cloud, letter in (("aws", "A"), ("other", "B"))
    ]
    return KeySet((site, *clouds))


class KeysWorld(JoiningWorld):
    """``pub1`` of cloud ``aws`` and nothing else: no static node, no munge key at all."""

    def __init__(self, engine: Engine, image: str, machine: str) -> None:
        Ec2World.__init__(self, engine, image, conf="MinJobAge=3600\n")
        self.machine_image = machine

    def site_conf(self, head: Host) -> str:
        """slurm.conf, and the keys that slurmctld has from its start."""
        # For its socket, as slurmctld.service has it by RuntimeDirectory.
        head.run(["install", "-d", "-o", "slurm", "-g", "slurm", "/run/slurmctld"])
        self.put_keys(head, first_keys())
        munge, slurm = "AuthType=auth/munge", "AuthType=auth/slurm\nCredType=cred/slurm"
        assert munge in SITE_CONF
        return self.conf.replace(munge, slurm)

    def put_keys(self, head: Host, keys: KeySet) -> None:
        """The head's file; slurmctld reads it when it is told to."""
        head.put(HEAD_KEYS, keys.encoded().decode(), mode=0o600)
        head.run(["chown", "slurm:slurm", HEAD_KEYS])

    def keys_of(self, host: Host) -> KeySet:
        """The keys that the head or a machine has."""
        return keyset.parse(host.run(["cat", HEAD_KEYS]).stdout.encode())

    def rotate(self, *options: str) -> str:
        """``key rotate``, as root on a head without systemd."""
        command = ["slurm-elastic", "--config", "/etc/elastic/slurm-elastic.yaml", "key", "rotate"]
        command += ["--head-command", HUP_HEAD, "--restart", HUP_MACHINE, *options]
        out: str = self.head.run(command).stdout
        return out

    def _come_up(self) -> None:
        Ec2World._come_up(self)
        self.aws = self._parts.enter_context(Hypervisor(self, AWS, self._login))

    def _config(self) -> dict[str, Any]:
        config = super()._config()
        for kind in ("clouds", "pools"):
            config[kind] = config[kind][:1]
        ssh = config["join"]["ssh"]
        del ssh["munge_key"]
        ssh["slurm_keys"] = HEAD_KEYS
        return config
