"""An elastic cluster whose machines are containers that can checkpoint: an on-premises cloud of
Docker's, and spot machines of EC2. EC2 is the sandbox's, on this host; what it starts is a container.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from slurm_elastic.image.imds import ADDRESS
from slurm_elastic.sandbox.ec2.cloud import MachineView
from slurm_elastic.sandbox.ec2.events import ACCOUNT, QUEUE
from slurm_elastic.sandbox.seen import ALIVE
from slurm_elastic.sandbox.spec import IMAGE
from slurm_elastic.slurm.hooks.launcher import PROGRAM
from slurm_elastic.state.ledger import Ledger, Machine

from .criu_world import CONF, SUDOERS
from .ec2_parts import ENVIRONMENT
from .ec2_world import Ec2World
from .engine import REPO, Engine
from .served_world import ServedWorld
from .world import CRIU_CAPS, UID, USER, Host

CKPTMAN = ("/usr/bin/python3", "-P", "-c",
           "import sys; from slurm_elastic.cli.services.ckptman import main; sys.exit(main())")  # fmt: skip
AGENT = (
    "/usr/bin/python3",
    "-I",
    "/opt/slurm-elastic/slurm_elastic/machine/programs/agent.py",
    "/etc/agent",
)
LISTENS = ("ss", "-Hltn", "src", f"{ADDRESS}:80")
LOOK = 0.25
"""Seconds between two looks at EC2's machines."""
BOOT = (
    f"chmod 755 /run; useradd -u {UID} -m -s /bin/bash {USER}; install -m 755 /shared/ckpt-root {PROGRAM};"
    " install -m 440 /etc/slurm-elastic/sudoers /etc/sudoers.d/slurm-elastic;"
    " exec slurm-node >>/shared/log/$SLURM_ELASTIC_NODE.boot 2>&1"
)


class SpotWorld(Ec2World, ServedWorld):
    """``bx1`` of Docker and ``pub[1-2]`` of EC2, besides a node ``n1`` with one CPU. slurm-elasticd
    runs in the head; ``listen`` starts slurm-elastic-ckptman.
    """

    conf_lines = CONF

    def __init__(self, engine: Engine, image: str) -> None:
        super().__init__(engine, image, nodes=1, cpus=1, socket=True)

    def set_up_head(self, host: Host) -> None:
        """Nothing: the installation brings it."""

    # the services

    def listen(self, **notices: Any) -> None:
        """Start slurm-elastic-ckptman with these sources of notices, in the place of another."""
        path = "/etc/elastic/ckptman.yaml"
        config = self._config()
        config["checkpoint"]["notices"] = notices
        self.head.put(path, json.dumps(config))
        self.run_service([*ENVIRONMENT, *CKPTMAN, "--config", path])

    @property
    def queue(self) -> str:
        """The URL of EC2's queue, as the head reaches it."""
        return f"{self.endpoint}/{ACCOUNT}/{QUEUE}"

    def state(self) -> str:
        """With the ends of the logs: there are many who could be the culprit."""
        return f"{super().state()}\n{self.logs(12)}"

    # what is known

    def machine(self, node: str) -> Machine:
        """The node's machine as slurm-elasticd has recorded it."""
        book = Ledger(self.shared / "state" / "ledger.db", read_only=True)
        try:
            (found,) = [m for m in book.machines.live() if m.instance.node == node]
        finally:
            book.close()
        return found

    def images(self, job: int) -> list[Path]:
        """All files and directories in the job's directory of images."""
        return list(self.directory_of(job).rglob("*"))

    # the parts

    def _lay_out(self) -> None:
        super()._lay_out()
        shutil.copyfile(SUDOERS, self.directory / "keys" / "sudoers")
        (self.shared / "imds").mkdir()
        shutil.copyfile(
            REPO / "slurm_elastic" / "image" / "imds.py", self.shared / "imds" / "imds.py"
        )

    def _prepare(self) -> None:
        group = os.stat(self.engine.socket).st_gid
        self.head.run(["sh", "-c", f"groupadd -o -g {group} engine && usermod -aG engine slurm"])

    def _come_up(self) -> None:
        super()._come_up()
        self._parts.enter_context(Hypervisor(self))

    def _config(self) -> dict[str, Any]:
        keys, size = self.directory / "keys", {"cpus": 2, "memory": "1G", "real_memory": 500}
        criu = {"checkpoint": {"method": "criu"}}
        return {
            # That of the nodes' ckpt-root.conf.
            "cluster": {"name": "containers", "uuid": "5d1f6f0c-9f0e-4c55-8f4b-1d9a6a1f2b7c"},
            "state_dir": "/shared/state",
            "allow": {"groups": [USER], "max_time": "1h", "default_time": "30m"},
            "limits": {"dollars_per_hour": 2.0},
            "timings": {"suspend_time": 120, "suspend_timeout": 5, "resume_timeout": 300,
                        "reconcile_interval": 2, "orphan_timeout": 20, "capacity_cooldown": 20},
            "clouds": [
                {
                    "name": "boxes", "provider": "docker", "location": "on-premises",
                    "hosts": {"box": {"cpus": 1000, "memory": "1T"}},
                    "image": self.image, "network": self.id,
                    "types": {"small": {"cpus": 2, "memory": "1G", "price": 0.01}},
                    "command": ["sh", "-c", BOOT],
                    "mounts": [f"{keys}:/etc/slurm-elastic:ro", f"{self.shared}:/shared"],
                    "capabilities": list(CRIU_CAPS), "security_options": ["seccomp=unconfined"],
                    "tmpfs": ["/run"],
                },
                {
                    "name": "aws", "provider": "aws", "location": "public", "region": "us-east-1",
                    "endpoint": self.endpoint, "image": IMAGE,
                    "zones": ["us-east-1a", "us-east-1b", "us-east-1c"],
                    "types": {"c5.large": {"cpus": 2, "memory": "4G", "price": 0.085}},
                },
            ],
            "pools": [
                {"name": "box", "cloud": "boxes", "nodes": "bx1", "instance_types": ["small"],
                 **size, **criu},
                {"name": "pub", "cloud": "aws", "nodes": "pub[1-2]", "markets": ["spot"],
                 "instance_types": ["c5.large"], **size, **criu},
            ],
            "join": {"head": "head"},
            "checkpoint": {"directory": "/shared/ckpt", "policy": "on_notice", "expected_duration": "10s"},
        }  # fmt: skip


class Hypervisor:
    """Boots a container for each machine that EC2 starts, and cuts its power when EC2 ends it. In
    each are EC2's instance metadata, as far as they are about spot, and the product's agent.
    """

    def __init__(self, world: SpotWorld) -> None:
        self._world = world
        self._hosts: dict[str, Host] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Hypervisor:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(LOOK):
            alive = {m.id: m for m in self._world.ec2.state().machines if m.state in ALIVE}
            for gone in self._hosts.keys() - alive.keys():
                self._hosts.pop(gone).kill()
            for machine in alive.values():
                self._tell(machine)
                if machine.id not in self._hosts:
                    self._hosts[machine.id] = self._boot(machine)

    def _tell(self, machine: MachineView) -> None:
        path = self._world.shared / "imds" / machine.id
        new = path.with_suffix(".new")
        new.write_text(json.dumps(metadata(machine)))
        new.replace(path)

    def _boot(self, machine: MachineView) -> Host:
        host = self._world.start_node(machine.node)
        host.run(["ip", "address", "add", f"{ADDRESS}/32", "dev", "lo"])
        imds = ["/usr/bin/python3", "/shared/imds/imds.py", f"/shared/imds/{machine.id}"]
        host.start(imds, f"{machine.node}.imds")
        self._world.wait_for(
            lambda: host.run(LISTENS, check=False).stdout, "the metadata service listens"
        )
        settings = {"node": machine.node, "heartbeat_timeout": "900", "stop_command": "true",
                    "metadata": "ec2 http://169.254.169.254/latest/"}  # fmt: skip
        host.put("/etc/agent", "".join(f"{k}={v}\n" for k, v in settings.items()))
        host.start(AGENT, f"{machine.node}.agent")
        return host


def metadata(machine: MachineView) -> Mapping[str, str]:
    """The answers of the machine's metadata service, by path below ``meta-data/``."""
    said = {"instance-id": machine.id}
    if machine.interruption is not None:
        when = datetime.fromtimestamp(machine.interruption.deadline, UTC)
        action = {"action": "terminate", "time": when.strftime("%Y-%m-%dT%H:%M:%SZ")}
        said["spot/instance-action"] = json.dumps(action)
    return said
