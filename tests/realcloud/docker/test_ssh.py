"""An engine by SSH: a host with a real sshd, which leads to the engine of these tests."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from patience import awake, stretched

from slurm_elastic.base.errors import AuthError, TransientError
from slurm_elastic.config import Cluster
from slurm_elastic.model.cluster import InstanceState, LaunchSpec, Location, Market, Pool
from slurm_elastic.model.protocols import Provider
from slurm_elastic.providers import open_provider
from slurm_elastic.providers.docker.settings import DockerCloud, DockerHost, DockerType
from slurm_elastic.testing.contract import UUID

from .engine import Engine
from .world import Host, wait_for

POOL = Pool(
    name="far", cloud="far", nodes=("fa1",), cpus=1, real_memory=64, instance_types=("small",),
    markets=(Market.RESERVED,),
)  # fmt: skip
DIAL = """\
#!/usr/bin/python3
# docker system dial-stdio, which is all that is asked of the command.
import os, socket, sys, threading
assert sys.argv[1:] == ["system", "dial-stdio"], sys.argv
engine = socket.socket(socket.AF_UNIX)
engine.connect("/engine.sock")
def up():
    while data := os.read(0, 65536):
        engine.sendall(data)
    engine.shutdown(socket.SHUT_WR)
threading.Thread(target=up, daemon=True).start()
while data := engine.recv(65536):
    os.write(1, data)
"""
SSHD = "mkdir -p /run/sshd && ssh-keygen -A >/dev/null && exec /usr/sbin/sshd -D -e"


@dataclass
class Far:
    """The host with sshd, and the network that containers are to be in."""

    host: Host
    address: str
    network: str
    image: str

    def open(self, **more: Any) -> Provider:
        url = f"ssh://root@{self.address}"
        values: dict[str, Any] = {
            "hosts": {"far": DockerHost(url=url, cpus=1000, memory=10**6)},
            "image": self.image,
            "network": self.network,
            "types": {"small": DockerType(cpus=1, memory=64)},
            "command": ("sleep", "infinity"),
            "api_timeout": 60.0,
        }
        cloud = DockerCloud(name="far", location=Location.ON_PREMISES, **(values | more))
        # A cluster of its own: other tests use the same engine.
        return open_provider(cloud, Cluster(name="ssh", uuid=f"{UUID[:-8]}{self.network[-8:]}"))


@pytest.fixture(scope="module")
def far(docker_engine: Engine, trixie: str) -> Iterator[Far]:
    client = docker_engine.client()
    network = client.networks.create(f"ssh{secrets.token_hex(4)}")
    try:
        container = client.containers.create(
            trixie, ["sh", "-c", SSHD], init=True, network=network.name,
            volumes=[f"{docker_engine.socket}:/engine.sock"],
        )  # fmt: skip
        container.start()
        host = Host(container)
        host.put("/usr/local/bin/docker", DIAL, mode=0o755)
        host.run(["install", "-d", "-m", "700", "/root/.ssh"])
        container.reload()
        address = container.attrs["NetworkSettings"]["Networks"][network.name]["IPAddress"]
        wait_for(
            lambda: "listening" in container.logs().decode(), "sshd listens",
            lambda: container.logs().decode(),
        )  # fmt: skip
        yield Far(host=host, address=address, network=network.name, image=trixie)
    finally:
        for one in client.containers.list(all=True, filters={"network": network.name}):
            one.remove(force=True, v=True)
        network.remove()
        client.close()


@pytest.fixture
def home(far: Far, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """SlurmUser's home: a key that the host lets in, and the host's own in known_hosts."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    ssh = tmp_path / ".ssh"
    ssh.mkdir(mode=0o700)
    far.host.put("/root/.ssh/authorized_keys", _key(ssh / "id_ed25519"), mode=0o600)
    theirs = far.host.run(["cat", "/etc/ssh/ssh_host_ed25519_key.pub"]).stdout.split()
    (ssh / "known_hosts").write_text(f"{far.address} {theirs[0]} {theirs[1]}\n")
    return tmp_path


def test_machines_come_and_go_by_ssh(far: Far, home: Path) -> None:
    provider = far.open()
    provider.check()
    (offer,) = provider.offers(POOL)
    spec = LaunchSpec(generation="g1", pool=POOL, nodes=("fa1",), offer=offer)
    (machine,) = provider.launch(spec)
    assert (machine.state, machine.zone) == (InstanceState.RUNNING, "far")
    assert [m.id for m in far.open().instances()] == [machine.id]
    provider.terminate([machine.id])
    # An engine may list for a moment as running what it has just seen end.
    wait_for(lambda: not provider.instances(), "it is no machine any more", lambda: "")


def test_an_unknown_host_is_refused(far: Far, home: Path) -> None:
    (home / ".ssh" / "known_hosts").write_text("")
    with pytest.raises(AuthError, match="known_hosts"):
        far.open().check()


def test_another_host_key_than_the_known_one_is_refused(far: Far, home: Path) -> None:
    other = _key(home / "other").split()
    (home / ".ssh" / "known_hosts").write_text(f"{far.address} {other[0]} {other[1]}\n")
    with pytest.raises(AuthError):
        far.open().check()


def test_a_key_that_opens_nothing_is_refused(far: Far, home: Path) -> None:
    _key(home / ".ssh" / "id_ed25519")
    with pytest.raises(AuthError):
        far.open().check()


def test_a_connection_that_broke_is_made_anew(far: Far, home: Path) -> None:
    provider = far.open()
    provider.check()
    far.host.run(["pkill", "-x", "sshd-session"])

    def well() -> bool:
        try:
            provider.check()
        except TransientError:
            return False
        return True

    wait_for(well, "the connection is back", lambda: "")


def test_an_ssh_port_that_says_nothing_costs_the_time_out(home: Path, far: Far) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"ssh://root@127.0.0.1:{silent.getsockname()[1]}"
        hosts = {"far": DockerHost(url=url, cpus=1, memory=64)}
        with awake() as took:
            with pytest.raises(TransientError):
                far.open(hosts=hosts, api_timeout=2.0).check()
            assert took() < stretched(10)


def _key(path: Path) -> str:
    """A fresh key pair; the public half, as a line."""
    key = Ed25519PrivateKey.generate()
    path.touch(mode=0o600)
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.OpenSSH,
            serialization.NoEncryption(),
        )
    )
    public = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    return public.decode() + "\n"
