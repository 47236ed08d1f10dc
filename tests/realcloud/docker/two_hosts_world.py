"""A cluster whose machines are on two engines: the world's own by its socket, a second one by TLS.

Both have a network of one name on one bridge, as ``macvlan`` or ``overlay`` would be one for hosts
that stand apart.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import docker

from .elastic_world import BOOT, ElasticWorld
from .engine import Engine
from .far_engine import FarEngine
from .world import Host

FAR_SLOTS = 2
NO_NAMES = ": >/etc/resolv.conf"
"""Slurm asks who an address is. An engine passes on what it does not know itself, and here nobody
answers: slurmctld would stand still for ten seconds each time.
"""
NO_NODE = """\
NodeName=static1 NodeAddr=127.0.0.1 State=DOWN Reason=none
PartitionName=static Nodes=static1 Default=YES
"""
FILES = "/etc/elastic/far"
"""In the head: the certificates that the daemon shows to the far engine."""


class TwoHostsWorld(ElasticWorld):
    """``near`` has room for all, ``far`` for two machines, and comes first."""

    machine_nodes = 4
    boot = f"{NO_NAMES}; {BOOT}"

    def __init__(self, engine: Engine, far: FarEngine, image: str) -> None:
        super().__init__(engine, image, conf=NO_NODE, socket=True)
        self.far = far
        self.far_client = far.client(timeout=120.0)

    def close(self) -> None:
        with contextlib.ExitStack() as rest:
            rest.callback(super().close)
            rest.callback(self.far_client.close)
            if not self.far.up:
                self.far.start(self.gateway)
            for container in self._far_containers():
                container.remove(force=True, v=True)
            for network in self.far_client.networks.list(names=[self.id]):
                network.remove()

    def containers(self) -> list[Any]:
        """The containers of both engines; of the far one only while it runs."""
        return super().containers() + (self._far_containers() if self.far.up else [])

    def running_by_host(self) -> Counter[str]:
        """How many machines run on each host."""
        far = {c.id for c in self._far_containers()} if self.far.up else set()
        running = (c for c in self.machines() if c.status == "running")
        return Counter("far" if c.id in far else "near" for c in running)

    def set_up_head(self) -> None:
        self.head.run(["mkdir", "-p", FILES])
        for name, path in self._files().items():
            self.head.put(f"{FILES}/{name}.pem", Path(path).read_text(), mode=0o600)
        self.head.run(["chown", "-R", "slurm:", FILES])

    def hosts(self) -> dict[str, Any]:
        far = self.far.host(self.gateway)
        files = {f"{name}_file": f"{FILES}/{name}.pem" for name in self._files()}
        return {
            "far": {"url": far.url, "cpus": FAR_SLOTS, "memory": "1T", **files},
            "near": {"cpus": 1000, "memory": "1T"},
        }

    def head_address(self) -> str:
        return _address(self.head, self.id)

    def site_conf(self, head: Host) -> str:
        """With the head's address: an engine knows the names of its own containers only."""
        return self.conf.replace("Host=head\n", f"Host=head({_address(head, self.id)})\n")

    def _start(self, name: str, **options: Any) -> Host:
        host = super()._start(name, **options)
        host.run(["sh", "-c", NO_NAMES])
        return host

    def _make_network(self) -> None:
        """One bridge: addresses of its upper half are the far engine's to give."""
        super()._make_network()
        self.network.reload()
        (pool,) = self.network.attrs["IPAM"]["Config"]
        self.gateway = str(pool["Gateway"])
        self.far.stop()
        self.far.start(self.gateway)
        upper = list(ip_network(pool["Subnet"]).subnets())[1]
        same = docker.types.IPAMPool(
            subnet=pool["Subnet"], gateway=self.gateway, iprange=str(upper)
        )
        self.far_client.networks.create(
            self.id,
            ipam=docker.types.IPAMConfig(pool_configs=[same]),
            options={"com.docker.network.bridge.name": f"br-{self.network.id[:12]}"},
        )

    def _files(self) -> dict[str, str]:
        far = self.far
        return {"ca": far.authority.ca_file, "cert": far.cert_file, "key": far.key_file}

    def _far_containers(self) -> list[Any]:
        return self.far_client.containers.list(
            all=True, filters={"network": self.id}, ignore_removed=True
        )


def _address(host: Host, network: str) -> str:
    host.container.reload()
    return str(host.container.attrs["NetworkSettings"]["Networks"][network]["IPAddress"])
