"""A real OpenStack control plane on loopback: keystone, placement, glance, nova with one host.

MariaDB and RabbitMQ are processes of its own with own directories, ports and sockets; those that a
machine runs anyway are not touched. Everything lies in one directory and is stopped by pid.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from patience import patience, pause
from ports import free_ports

from .cloud import Admin
from .settings import DATABASES, PASSWORD, REGION, Place, Ports, write

HERE = Path(__file__).resolve().parent
CACHE = Path("/var/cache/slurm-elastic")
SETUP_LIMIT = 1200.0
"""Seconds for packages and the virtual environment, the first time."""
READY = 300.0
"""Seconds a service may take; far more than it needs, as the machine may be busy."""
MEMORY = 2_500_000
"""KiB that must be available: it takes about 1.3 GiB."""
PATH = "/usr/sbin:/usr/bin:/sbin:/bin"


class NoControlPlane(Exception):  # noqa: N818 - read as a word
    """This machine cannot run one; the text says why."""


class BrokenError(AssertionError):
    """A service of OpenStack's did not come up although the machine has all that it needs."""


class ControlPlane:
    """Use it as ``with running_plane() as plane``."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._orders = place.dir / "hypervisor.json"
        self._admin: Admin | None = None

    @property
    def clouds_file(self) -> Path:
        """clouds.yaml, with the entries ``site`` and ``admin``; nobody else may read it."""
        return self.place.etc / "clouds.yaml"

    @property
    def admin(self) -> Admin:
        """What its administrators can do."""
        if self._admin is None:
            self._admin = Admin(str(self.clouds_file))
        return self._admin

    def hypervisor(self, **orders: object) -> None:
        """``delay=seconds`` of each boot, ``broken=text``: each boot is aborted. None: all well."""
        draft = self._orders.with_suffix(".new")
        draft.write_text(json.dumps(orders))
        draft.replace(self._orders)

    def pid(self, service: str) -> int:
        """Of ``nova-api``, ``nova-compute``, ``keystone`` and so on, for SIGSTOP and the like."""
        return self._processes[service].pid

    def stop(self, service: str) -> None:
        """End one service."""
        _end([self._processes.pop(service)])

    def start(self, service: str) -> None:
        """Start one of nova's again."""
        self._spawn(service, *self._command(service))

    def tails(self, lines: int = 15) -> str:
        """What each service said last."""
        logs = sorted(self.place.log.glob("*.log"))
        return "\n".join(
            f"--- {log.name}\n" + "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
            for log in logs
        )

    # coming up

    def up(self) -> None:
        """Start everything; returns when a server can be made."""
        write(self.place)
        try:
            self._rabbit()
            self._database()
            self._wait("rabbitmq", lambda: _listens(self.place.ports.rabbit))
        except BrokenError as error:
            raise NoControlPlane(f"MariaDB or RabbitMQ does not run here: {error}") from error
        with ThreadPoolExecutor(4) as pool:
            jobs = [
                pool.submit(job)
                for job in (self._keystone, self._placement, self._glance_db, self._nova_db)
            ]
        for job in jobs:
            job.result()
        self._wait("keystone", lambda: _answers(self.place.auth_url))
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
            self._wait(service, lambda s=service: _answers(self.place.endpoint(s)))
        self._wait("nova-api", lambda: _answers(f"http://127.0.0.1:{self.place.ports.nova}/"))
        self._wait("nova-compute", self.admin.host_is_up)
        self._manage("nova-manage", "cell_v2", "discover_hosts", config="nova.conf")
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
        self._spawn("epmd", ["epmd", "-address", "127.0.0.1", "-port", str(ports.epmd)], {})
        self._spawn("rabbitmq", ["/usr/lib/rabbitmq/bin/rabbitmq-server"], env)

    def _database(self) -> None:
        data = self.place.dir / "db"
        common = ["--no-defaults", "--user=root", f"--datadir={data}"]
        self._run(
            "db-install",
            [
                "mariadb-install-db",
                *common,
                "--auth-root-authentication-method=normal",
                "--skip-test-db",
            ],
        )
        fast = [
            "--innodb-flush-log-at-trx-commit=0",
            "--innodb-doublewrite=0",
            "--sync-binlog=0",
            "--max-connections=400",
            # On since MariaDB 11.6; nova 31 takes its error 1020 for no reason to try again.
            "--loose-innodb-snapshot-isolation=OFF",
        ]
        only_here = [
            "--skip-networking",
            f"--socket={self.place.socket}",
            f"--pid-file={self.place.dir}/db.pid",
        ]
        self._spawn("mariadb", ["mariadbd", *common, *fast, *only_here], {})
        client = ["mariadb", "--no-defaults", "--user=root", f"--socket={self.place.socket}"]
        self._wait("mariadb", lambda: _succeeds([*client, "--execute=select 1"]))
        words = ";".join(f"create database {name} character set utf8mb3" for name in DATABASES)
        self._run("db-create", [*client, f"--execute={words}"])

    def _keystone(self) -> None:
        who = ["--keystone-user", "root", "--keystone-group", "root"]
        manage = ("keystone-manage",)
        self._manage(*manage, "db_sync", config="keystone.conf")
        self._manage(*manage, "fernet_setup", *who, config="keystone.conf")
        self._manage(*manage, "credential_setup", *who, config="keystone.conf")
        urls = [
            word
            for kind in ("admin", "internal", "public")
            for word in (f"--bootstrap-{kind}-url", self.place.auth_url)
        ]
        self._manage(
            *manage, "bootstrap", "--bootstrap-password", PASSWORD, "--bootstrap-region-id", REGION, *urls,
            config="keystone.conf",
        )  # fmt: skip
        self.start("keystone")

    def _placement(self) -> None:
        directory = str(self.place.etc / "placement")
        self._run("placement-db", ["placement-manage", "--config-dir", directory, "db", "sync"])
        self.start("placement")

    def _glance_db(self) -> None:
        self._manage("glance-manage", "db_sync", config="glance-api.conf")

    def _nova_db(self) -> None:
        cell0 = ["--database_connection", self.place.database("nova_cell0")]
        self._manage("nova-manage", "api_db", "sync", config="nova.conf")
        self._manage("nova-manage", "cell_v2", "map_cell0", *cell0, config="nova.conf")
        self._manage("nova-manage", "db", "sync", config="nova.conf")
        self._manage("nova-manage", "cell_v2", "create_cell", "--name", "cell1", config="nova.conf")

    # processes

    def _env(self, more: Mapping[str, str]) -> dict[str, str]:
        base = {
            "PATH": f"{self.place.venv / 'bin'}:{PATH}",
            "LANG": "C.UTF-8",
            "HOME": str(self.place.dir),
        }
        return base | {"PYTHONWARNINGS": "ignore"} | dict(more)

    def _spawn(self, name: str, command: Sequence[str], more: Mapping[str, str]) -> None:
        with (self.place.log / f"{name}.log").open("ab") as out:
            self._processes[name] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=self._env(more),
                cwd=self.place.dir,
                start_new_session=True,
            )

    def _manage(self, program: str, *words: str, config: str) -> None:
        name = "-".join([program, *words[:2]])
        self._run(name, [program, "--config-file", str(self.place.etc / config), *words])

    def _run(self, name: str, command: Sequence[str]) -> None:
        done = subprocess.run(
            command,
            env=self._env({}),
            cwd=self.place.dir,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=READY,
            check=False,
        )
        (self.place.log / f"{name}.log").write_bytes(done.stdout + done.stderr)
        if done.returncode != 0:
            text = (done.stderr or done.stdout).decode(errors="replace").strip()
            raise BrokenError(f"{name} ended with {done.returncode}: {text[-1500:]}")

    def _wait(self, name: str, ready: Callable[[], bool]) -> None:
        began = time.monotonic()
        until = began + patience(READY)
        while not ready():
            if self._processes[name].poll() is not None:
                raise BrokenError(f"{name} ended at once\n{self.tails()}")
            if time.monotonic() > until:
                raise BrokenError(f"{name} does not answer after {READY:g} s\n{self.tails()}")
            pause(began, 0.2)

    def down(self) -> None:
        """Stop all that was started, the clients of the database and of RabbitMQ before these."""
        if self._admin is not None:
            self._admin.close()
        last = ("rabbitmq", "mariadb", "epmd")
        _end([p for name, p in self._processes.items() if name not in last])
        for name in last:
            _end([self._processes[name]] if name in self._processes else [])
        self._processes.clear()

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
            # Ports are found free long before all services take theirs: once more, with others.
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


def _end(some: Sequence[subprocess.Popen[bytes]]) -> None:
    """SIGTERM to each and its children, SIGKILL to those that stay; each is a session of its own."""
    for process in some:
        _signal(process, signal.SIGTERM)
    until = time.monotonic() + patience(15.0)
    for process in some:
        try:
            process.wait(max(until - time.monotonic(), 0.1))
        except subprocess.TimeoutExpired:
            _signal(process, signal.SIGKILL)
            process.wait(patience(30))
        # What a service has started itself and did not take along.
        _signal(process, signal.SIGKILL)


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        return


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


def _succeeds(command: Sequence[str]) -> bool:
    return (
        subprocess.run(command, capture_output=True, check=False, env={"PATH": PATH}).returncode
        == 0
    )


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
