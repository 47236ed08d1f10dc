"""A real OpenStack control plane on loopback: keystone, placement, glance, nova with one host.

MariaDB and RabbitMQ are processes of its own with own directories, ports and sockets; those that a
machine runs anyway are not touched. Everything lies in one directory and is stopped by pid.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ports import free_ports

from . import databases
from .cloud import Admin
from .processes import BrokenError, Processes
from .settings import Place, Ports, write

HERE = Path(__file__).resolve().parent
CACHE = Path("/var/cache/slurm-elastic")
SETUP_LIMIT = 1200.0
"""Seconds for packages and the virtual environment, the first time."""
MEMORY = 2_500_000
"""KiB that must be available: it takes about 1.3 GiB."""


class NoControlPlane(Exception):  # noqa: N818 - read as a word
    """This machine cannot run one; the text says why."""


class ControlPlane:
    """Use it as ``with running_plane() as plane``."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._processes = Processes(place)
        self._orders = place.dir / "hypervisor.json"
        self._admin: Admin | None = None

    @property
    def clouds_file(self) -> Path:
        """clouds.yaml, with the entries ``site`` and ``admin``; nobody else may read it."""
        return self.place.etc / "clouds.yaml"

    @property
    def admin(self) -> Admin:
        """The control plane's administrator."""
        if self._admin is None:
            self._admin = Admin(str(self.clouds_file))
        return self._admin

    def hypervisor(self, **orders: object) -> None:
        """``held=True``: boots wait until it is not; ``broken=text``: each is aborted. None: all well."""
        draft = self._orders.with_suffix(".new")
        draft.write_text(json.dumps(orders))
        draft.replace(self._orders)

    def pid(self, service: str) -> int:
        """The process id of ``nova-api``, ``keystone`` and so on, for SIGSTOP and the like."""
        return self._processes.pid(service)

    def stop(self, service: str) -> None:
        """End one service."""
        self._processes.end([service])

    def start(self, service: str) -> None:
        """Start one of nova's again."""
        self._processes.start(service, *self._command(service))

    def tails(self, lines: int = 15) -> str:
        """The last lines of each service's log."""
        return self._processes.tails(lines)

    # coming up

    def up(self) -> None:
        """Start everything; returns when a server can be made."""
        write(self.place)
        self._rabbit()
        try:
            databases.begin(self.place, self._processes)
        except databases.NoDatabaseError as error:
            raise NoControlPlane(f"MariaDB does not run here: {error}") from error
        for service in ("keystone", "placement"):
            self.start(service)
        try:
            self._processes.wait("rabbitmq", lambda: _listens(self.place.ports.rabbit))
        except BrokenError as error:
            raise NoControlPlane(f"RabbitMQ does not run here: {error}") from error
        self._processes.wait("keystone", lambda: _answers(self.place.auth_url))
        self.admin.seed(self.place)
        for service in (
            "network",
            "glance",
            "nova-conductor",
            "nova-scheduler",
            "nova-compute",
            "nova-api",
        ):
            self.start(service)
        for service in ("placement", "glance", "network"):
            self._processes.wait(service, lambda s=service: _answers(self.place.endpoint(s)))
        self._processes.wait(
            "nova-api", lambda: _answers(f"http://127.0.0.1:{self.place.ports.nova}/")
        )
        self._processes.wait("nova-compute", self.admin.host_is_up)
        self.admin.stock()

    def _command(self, service: str) -> tuple[Sequence[str], Mapping[str, str]]:
        place = self.place
        nova = ["--config-file", str(place.etc / "nova.conf")]
        own = {
            "SLURM_ELASTIC_HYPERVISOR": str(self._orders),
        }
        python = str(place.venv / "bin" / "python")
        match service:
            case "network":
                return [python, str(HERE / "network.py"), str(place.ports.network)], {}
            case "glance":
                return ["glance-api", "--config-file", str(place.etc / "glance-api.conf")], {}
            case "keystone":
                served = [python, str(HERE / "serve.py"), "keystone.wsgi.api:application"]
                config = {"OS_KEYSTONE_CONFIG_FILES": str(place.etc / "keystone.conf")}
                return [*served, str(place.ports.keystone)], config
            case "placement":
                served = [python, str(HERE / "serve.py"), "placement.wsgi.api:application"]
                config = {"OS_PLACEMENT_CONFIG_DIR": str(place.etc / "placement")}
                return [*served, str(place.ports.placement)], config
            case "nova-api":
                return ["nova-api-os-compute", *nova], {}
            case _:
                return [service, *nova], own

    def _rabbit(self) -> None:
        ports, home = self.place.ports, self.place.dir / "rabbit"
        (home / "plugins").write_text("[].")
        env = {
            "HOME": str(home),
            "ERL_EPMD_PORT": str(ports.epmd),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": f"test{ports.rabbit}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(ports.rabbit),
            "RABBITMQ_DIST_PORT": str(ports.rabbit_peers),
            "RABBITMQ_BASE": str(home),
            "RABBITMQ_MNESIA_BASE": str(home / "mnesia"),
            "RABBITMQ_LOG_BASE": str(home / "log"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(home / "plugins"),
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "RABBITMQ_CONFIG_FILE": str(home / "none"),
            # Little of everything: erlang's schedulers spin for work, and there is hardly any.
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}"
            " +S 1:1 +sbwt none",
        }
        self._processes.start(
            "epmd", ["epmd", "-address", "127.0.0.1", "-port", str(ports.epmd)], {}
        )
        self._processes.start("rabbitmq", ["/usr/lib/rabbitmq/bin/rabbitmq-server"], env)

    def down(self) -> None:
        """Stop all that was started, the clients of the database and of RabbitMQ before these."""
        if self._admin is not None:
            self._admin.close()
        last = ("rabbitmq", databases.SERVER, "epmd")
        self._processes.end([name for name in self._processes.names() if name not in last])
        for name in last:
            self._processes.end([name])

    def remove(self) -> None:
        """Stop it and remove its directory."""
        self.down()
        shutil.rmtree(self.place.dir, ignore_errors=True)


@contextmanager
def running_plane(page: int = 1000) -> Iterator[ControlPlane]:
    """A fresh one, gone afterwards; NoControlPlane where there can be none.

    ``page`` is how many servers nova shows in one answer. Starting keeps two processors busy, so
    those that start one at the same time do it one after the other.
    """
    venv = _prepared()
    with _locked("openstack-start.lock"):
        try:
            plane = _started(venv, page)
        except BrokenError:
            # Ports are found free long before all services take theirs, and a kept copy may have
            # suffered: once more, with others.
            databases.forget(venv)
            plane = _started(venv, page)
    try:
        yield plane
    finally:
        plane.remove()


def _started(venv: Path, page: int) -> ControlPlane:
    directory = Path(tempfile.mkdtemp(prefix="se-os-", dir="/tmp"))
    directory.chmod(0o755)
    plane = ControlPlane(Place(directory, venv, Ports(*free_ports(8)), page))
    plane.hypervisor()
    try:
        plane.up()
    except BaseException:
        plane.remove()
        raise
    return plane


def _prepared() -> Path:
    """The virtual environment, made if it is not there yet."""
    if os.getuid() != 0:
        raise NoControlPlane("Debian packages are installed for it, which needs root")
    if (free := _available()) < MEMORY:
        raise NoControlPlane(
            f"it takes {MEMORY >> 10} MiB of memory, and {free >> 10} MiB are available"
        )
    try:
        done = subprocess.run(
            [str(HERE / "setup")],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SETUP_LIMIT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise NoControlPlane(f"its packages were not there after {SETUP_LIMIT:g} s") from None
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or ["no message"]
        raise NoControlPlane(f"its packages cannot be had: {' / '.join(lines[-3:])}")
    return Path(done.stdout.strip().splitlines()[-1])


def _available() -> int:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(
        (int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")), MEMORY
    )


@contextmanager
def _locked(name: str) -> Iterator[None]:
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / name).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _answers(url: str) -> bool:
    import requests

    with requests.Session() as http:
        http.trust_env = False
        try:
            return bool(http.get(url, timeout=10).status_code < 500)
        except requests.RequestException:
            return False


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def clouds_of(plane: ControlPlane, **more: Any) -> dict[str, Any]:
    """The keys of a cloud of ``provider: openstack`` that lead to this control plane."""
    return {
        "provider": "openstack",
        "cloud": "site",
        "clouds_file": str(plane.clouds_file),
        "image": "worker",
        "networks": ["none"],
        **more,
    }
