"""A site that bursts to EC2, whose machines are strangers to it: containers of an image without any
key, with nothing mounted but the site's shared directories. All that they know comes from user
data, which Debian's cloud-init carries out. EC2 is the sandbox's, on this host; slurm-elasticd runs
in the head.
"""

from __future__ import annotations

import base64
import io
import json
import tarfile
import threading
from collections.abc import Iterator
from typing import Any

import boto3
from botocore.config import Config as BotoConfig
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from slurm_elastic.sandbox.spec import IMAGE
from slurm_elastic.state.ledger import Ledger

from .ec2_world import Ec2World
from .engine import REPO, Engine
from .world import UID, USER, Host

KEY_PAIR = "cluster"
LOGIN = "debian"
"""Whom cloud-init of Debian lets in, with sudo."""
AWS, FAR = "us-east-1a", "eu-west-1b"
"""The clouds' zones: not those of one letter, as default networks of all regions are alike."""
LOOK = 0.25
"""Seconds between two looks at EC2's machines."""
NETWORK = "172.31.0.0/16"
"""EC2's default one, where moto has its machines."""
USERS = f"""\
#cloud-config
users:
  - default
  - {{name: {USER}, uid: {UID}, shell: /bin/bash}}
"""
"""The site's own user data: the site's users."""
SET_UP = f"""set -e
ip route add {NETWORK} dev eth0
install -d -o slurm -g slurm -m 700 /etc/elastic/secrets
ssh-keygen -q -t ed25519 -N '' -C head -f /etc/elastic/secrets/ssh_key
install -m 400 /etc/slurm-elastic/munge.key /etc/elastic/secrets/munge.key
chown slurm:slurm /etc/elastic/secrets/*
cat /etc/elastic/secrets/ssh_key.pub
"""
"""As docs/joining.md has it."""

IMPOSTOR = f"""set -e
ip address add "$ADDRESS" dev eth0
useradd -m -s /bin/bash {LOGIN}
install -d -o {LOGIN} -m 700 /home/{LOGIN}/.ssh
install -o {LOGIN} -m 600 /imds/login.pub /home/{LOGIN}/.ssh/authorized_keys
echo "{LOGIN} ALL=(ALL) NOPASSWD:ALL" >/etc/sudoers.d/login
mkdir -p /run/sshd
ssh-keygen -A
exec /usr/sbin/sshd -D -e
"""


class JoiningWorld(Ec2World):
    """``pub1`` of cloud ``aws`` and ``far1`` of cloud ``far``, besides a static node ``n1``. In ``far``
    others answer than the machines that EC2 shows the consoles of. ``image`` is the head's, ``machine``
    that of EC2's machines.
    """

    far_timeout = 120.0
    """Seconds that a machine of cloud far has to register."""

    def __init__(self, engine: Engine, image: str, machine: str) -> None:
        super().__init__(engine, image, nodes=1, cpus=1, conf="MinJobAge=3600\n")
        self.machine_image = machine

    # what is known

    @property
    def munge_key(self) -> bytes:
        """The cluster's."""
        return (self.directory / "keys" / "munge.key").read_bytes()

    def kinds(self, node: str) -> list[str]:
        """The decisions about a node so far."""
        book = Ledger(self.shared / "state" / "ledger.db", read_only=True)
        try:
            return [d.kind for d in book.decisions.about(node)]
        finally:
            book.close()

    def ec2_client(self, region: str) -> Any:
        """EC2, as an admin uses it."""
        made = boto3.client(
            "ec2", region_name=region, endpoint_url=self.ec2.url,
            aws_access_key_id="admin", aws_secret_access_key="emulated",
            config=BotoConfig(proxies={}),
        )  # fmt: skip
        self._parts.callback(made.close)
        return made

    # the parts

    def _prepare(self) -> None:
        self.head.run(["mkdir", "/etc/elastic"])
        self._login = self.head.run(["sh", "-c", SET_UP]).stdout
        self.head.put("/etc/elastic/users.yaml", USERS)

    def _come_up(self) -> None:
        super()._come_up()
        self.aws = self._parts.enter_context(Hypervisor(self, AWS, self._login))
        self.far = self._parts.enter_context(Impostors(self, FAR, self._login))

    def _subnet(self, zone: str) -> dict[str, str]:
        """EC2's default one: machines without get addresses of any network."""
        filters = [{"Name": "availability-zone", "Values": [zone]}]
        (found,) = self.ec2_client(zone[:-1]).describe_subnets(Filters=filters)["Subnets"]
        return {zone: found["SubnetId"]}

    def _config(self) -> dict[str, Any]:
        def cloud(name: str, zone: str, timeout: float) -> dict[str, Any]:
            return {
                "name": name, "provider": "aws", "location": "public", "region": zone[:-1],
                "endpoint": self.endpoint, "image": IMAGE, "subnets": self._subnet(zone),
                "key_name": KEY_PAIR, "user_data": "/etc/elastic/users.yaml",
                "resume_timeout": timeout,
                "types": {"c5.large": {"cpus": 2, "memory": "4G", "price": 0.085}},
            }  # fmt: skip

        def pool(name: str, cloud: str) -> dict[str, Any]:
            return {
                "name": name, "cloud": cloud, "nodes": f"{name}1", "markets": ["on-demand"],
                "instance_types": ["c5.large"], "cpus": 2, "memory": "1G", "real_memory": 500,
            }  # fmt: skip

        secrets = "/etc/elastic/secrets"
        return {
            "cluster": {"name": "containers"},
            "state_dir": "/shared/state",
            "allow": {"groups": [USER], "max_time": "1h", "default_time": "30m"},
            "limits": {"dollars_per_hour": 2.0},
            "timings": {"suspend_time": 300, "suspend_timeout": 5, "resume_timeout": 600,
                        "reconcile_interval": 2, "orphan_timeout": 20},
            "clouds": [cloud("aws", AWS, 600), cloud("far", FAR, self.far_timeout)],
            "pools": [pool("pub", "aws"), pool("far", "far")],
            "join": {
                "head": "head",
                "ssh": {"key": f"{secrets}/ssh_key", "munge_key": f"{secrets}/munge.key",
                        "user": LOGIN},
            },
        }  # fmt: skip


class Hypervisor:
    """EC2's behind a region: boots a container for each machine, has EC2 show what it prints, and cuts
    its power when EC2 ends it. ``public`` is the key pair's; ``hosts``, ``consoles`` and ``user_data``
    are those of all machines so far, by id.
    """

    command: tuple[str, ...] | None = None
    """The command that a machine's host runs; None: the one of its image."""

    def __init__(self, world: JoiningWorld, zone: str, public: str) -> None:
        self._world, self._public = world, public
        self.client = world.ec2_client(zone[:-1])
        self.client.import_key_pair(KeyName=KEY_PAIR, PublicKeyMaterial=public.encode())
        self.user_data: dict[str, bytes] = {}
        self.consoles: dict[str, str] = {}
        self.hosts: dict[str, Host] = {}
        self._on: set[str] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Hypervisor:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def machines(self) -> Iterator[dict[str, Any]]:
        """All of EC2's, the ended ones too."""
        for reservation in self.client.describe_instances()["Reservations"]:
            yield from reservation["Instances"]

    def _run(self) -> None:
        while not self._stop.wait(LOOK):
            for machine in self.machines():
                name, alive = machine["InstanceId"], machine["State"]["Name"] == "running"
                if alive and name not in self.hosts:
                    self.hosts[name] = self._boot(machine)
                    self._on.add(name)
                elif not alive and name in self._on:
                    self.hosts[name].container.kill()
                    self._on.remove(name)
                if name in self._on:
                    self._show(name)

    def printed(self, name: str) -> str:
        """All that the machine has printed so far."""
        text: bytes = self.hosts[name].container.logs()
        return text.decode()

    def _show(self, name: str) -> None:
        printed = self.printed(name)
        if printed != self.consoles.get(name):
            self.consoles[name] = printed
            self._world.ec2.console(name, printed)

    def _boot(self, machine: dict[str, Any]) -> Host:
        name = machine["InstanceId"]
        asked = self.client.describe_instance_attribute(InstanceId=name, Attribute="userData")
        self.user_data[name] = base64.b64decode(asked["UserData"]["Value"])
        world = self._world
        shared = {str(world.shared / d): {"bind": f"/shared/{d}"} for d in ("log", "jobs")}
        container = world.client.containers.create(
            world.machine_image, self.command, name=f"{world.id}-{name}", hostname=name, init=True, tty=True,
            network=world.id, cap_add=["NET_ADMIN", "SYS_ADMIN"], volumes=shared,
            environment={"ADDRESS": f"{machine['PrivateIpAddress']}/{NETWORK.partition('/')[2]}"},
            labels={"node": name},
        )  # fmt: skip
        host = Host(container)
        assert container.put_archive("/", self._imds(machine))
        container.start()
        return host

    def _imds(self, machine: dict[str, Any]) -> bytes:
        """EC2's metadata service for that machine, as a tar file."""
        files = {
            "imds/imds.py": (REPO / "slurm_elastic" / "image" / "imds.py").read_bytes(),
            "imds/answers.json": json.dumps(self._answers(machine)).encode(),
            "imds/login.pub": self._public.encode(),
        }
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w") as tar:
            for path, data in files.items():
                entry = tarfile.TarInfo(path)
                entry.size = len(data)
                tar.addfile(entry, io.BytesIO(data))
        return out.getvalue()

    def _answers(self, machine: dict[str, Any]) -> dict[str, str]:
        name, address = machine["InstanceId"], machine["PrivateIpAddress"]
        tags = {f"tags/instance/{tag['Key']}": tag["Value"] for tag in machine["Tags"]}
        keys = {"public-keys/": f"0={KEY_PAIR}", "public-keys/0/openssh-key": self._public}
        return {
            **tags,
            **(keys if machine.get("KeyName") == KEY_PAIR else {}),
            "http-tokens": "optional",
            "ami-id": machine["ImageId"],
            "ami-launch-index": str(machine["AmiLaunchIndex"]),
            "instance-id": name,
            "instance-type": machine["InstanceType"],
            "local-hostname": f"ip-{address.replace('.', '-')}",
            "local-ipv4": address,
            "placement/availability-zone": machine["Placement"]["AvailabilityZone"],
            "user-data": base64.b64encode(self.user_data[name]).decode(),
        }


class Impostors(Hypervisor):
    """At its machines' addresses answers somebody else, who lets us in as well as they would."""

    command = ("sh", "-c", IMPOSTOR)

    def printed(self, name: str) -> str:
        """cloud-init's lines, with a host key that the impostor does not have."""
        key = Ed25519PrivateKey.generate().public_key()
        line = key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
        block = "-----{} SSH HOST KEY KEYS-----"
        said = [block.format("BEGIN"), line, block.format("END")]
        return self.consoles.get(name) or "\r\n".join(said)
