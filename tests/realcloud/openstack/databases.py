"""MariaDB with the services' databases. Their tables are made once for these versions, which takes
half of a control plane's processor time, and kept beside the virtual environment; each control
plane begins with a copy.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from . import settings
from .processes import PATH, BrokenError, Processes
from .settings import DATABASES, HOST, PASSWORD, REGION, Place, Ports

PARTS = ("db", "fernet", "credential")
"""A control plane's directories that are kept: keystone's accounts and its keys go together."""
SERVER = "mariadb"
FAST = (
    "--innodb-flush-log-at-trx-commit=0",
    "--innodb-doublewrite=0",
    "--sync-binlog=0",
    "--max-connections=400",
    # On since MariaDB 11.6; nova 31 takes its error 1020 for no reason to try again.
    "--loose-innodb-snapshot-isolation=OFF",
)


class NoDatabaseError(Exception):
    """MariaDB does not run on this machine; the text says why."""


def begin(place: Place, processes: Processes) -> None:
    """Start MariaDB for a control plane at ``place``, with all tables, keystone's administrator and
    nova's cells. Only one may be at it at a time.
    """
    kept = _kept(place.venv)
    if not kept.exists():
        _make(place.venv, kept)
    for part in PARTS:
        _copy(kept / part, place.dir / part)
    _serve(place, processes)
    _execute(place, processes, "db-point", _pointing(place))


def forget(venv: Path) -> None:
    """Nothing is kept any more: the next one to begin makes it anew."""
    shutil.rmtree(_kept(venv), ignore_errors=True)


def _kept(venv: Path) -> Path:
    """Where the databases lie that these versions, programs and settings make; ``venv`` itself is
    named by the versions of Python and of OpenStack's packages.
    """
    said = subprocess.run(
        ["mariadbd", "--version"], capture_output=True, check=False, env={"PATH": PATH}
    )
    digest = hashlib.sha256(said.stdout)
    for file in (__file__, settings.__file__):
        digest.update(Path(file).read_bytes())
    return venv / f"databases-{digest.hexdigest()[:16]}"


def _make(venv: Path, kept: Path) -> None:
    """``kept`` is there as a whole or not at all; those of other versions are gone then."""
    directory = Path(tempfile.mkdtemp(prefix="se-os-", dir="/tmp"))
    # None of these ports is used, nor looked for: each copy is told its own addresses.
    place = Place(directory, venv, Ports(*[1] * 8), 1000)
    processes = Processes(place)
    draft = kept.with_suffix(".new")
    try:
        settings.write(place)
        try:
            _install(place, processes)
            _serve(place, processes)
        except BrokenError as error:
            raise NoDatabaseError(str(error)) from error
        _fill(place, processes)
        _stop(processes)
        for old in venv.glob("databases-*"):
            shutil.rmtree(old)
        draft.mkdir()
        for part in PARTS:
            _copy(directory / part, draft / part)
        os.sync()  # a copy that a power cut leaves half written would be taken for a whole one
        draft.rename(kept)
    finally:
        processes.end(processes.names())
        shutil.rmtree(directory, ignore_errors=True)


def _copy(source: Path, target: Path) -> None:
    """With the holes of InnoDB's files."""
    subprocess.run(["cp", "-a", "--sparse=always", source, target], check=True)


def _common(place: Place) -> list[str]:
    return ["--no-defaults", "--user=root", f"--datadir={place.dir / 'db'}"]


def _install(place: Place, processes: Processes) -> None:
    own = ["--auth-root-authentication-method=normal", "--skip-test-db"]
    processes.run("db-install", ["mariadb-install-db", *_common(place), *own])


def _serve(place: Place, processes: Processes) -> None:
    only_here = [
        "--skip-networking",
        f"--socket={place.socket}",
        f"--pid-file={place.dir}/db.pid",
    ]
    processes.start(SERVER, ["mariadbd", *_common(place), *FAST, *only_here], {})
    probe = [*_client(place), "--execute=select 1"]
    processes.wait(SERVER, lambda: _succeeds(probe))


def _stop(processes: Processes) -> None:
    (code,) = processes.end([SERVER])
    if code != 0:
        raise BrokenError(f"MariaDB ended with {code}\n{processes.tails()}")


def _fill(place: Place, processes: Processes) -> None:
    words = ";".join(f"create database {name} character set utf8mb3" for name in DATABASES)
    _execute(place, processes, "db-create", words)
    with ThreadPoolExecutor(4) as pool:
        jobs = [
            pool.submit(job, place, processes) for job in (_keystone, _placement, _glance, _nova)
        ]
    for job in jobs:
        job.result()


def _keystone(place: Place, processes: Processes) -> None:
    who = ["--keystone-user", "root", "--keystone-group", "root"]
    manage = ("keystone-manage",)
    processes.manage(*manage, "db_sync", config="keystone.conf")
    processes.manage(*manage, "fernet_setup", *who, config="keystone.conf")
    processes.manage(*manage, "credential_setup", *who, config="keystone.conf")
    urls = [
        word
        for kind in ("admin", "internal", "public")
        for word in (f"--bootstrap-{kind}-url", place.auth_url)
    ]
    processes.manage(
        *manage, "bootstrap", "--bootstrap-password", PASSWORD, "--bootstrap-region-id", REGION, *urls,
        config="keystone.conf",
    )  # fmt: skip


def _placement(place: Place, processes: Processes) -> None:
    directory = str(place.etc / "placement")
    processes.run("placement-db", ["placement-manage", "--config-dir", directory, "db", "sync"])


def _glance(_: Place, processes: Processes) -> None:
    processes.manage("glance-manage", "db_sync", config="glance-api.conf")


def _nova(place: Place, processes: Processes) -> None:
    def manage(*words: str) -> None:
        processes.manage("nova-manage", *words, config="nova.conf")

    manage("api_db", "sync")
    manage("cell_v2", "map_cell0", "--database_connection", place.database("nova_cell0"))
    manage("db", "sync")
    manage("cell_v2", "create_cell", "--name", "cell1")
    # What "cell_v2 discover_hosts" would find out when the host is up.
    words = (
        "insert into nova_api.host_mappings (created_at, cell_id, host)"
        f" select now(), id, '{HOST}' from nova_api.cell_mappings where name = 'cell1'"
    )
    _execute(place, processes, "db-host", words)


def _pointing(place: Place) -> str:
    """SQL for what the databases say of addresses: those of the one that they were made for."""
    return (
        f"update keystone.endpoint set url = '{place.auth_url}';"
        "update nova_api.cell_mappings set"
        f" database_connection = '{place.database('nova_cell0')}' where name = 'cell0';"
        "update nova_api.cell_mappings set"
        f" database_connection = '{place.database('nova')}', transport_url = '{place.rabbit_url}'"
        " where name = 'cell1'"
    )


def _client(place: Place) -> list[str]:
    return ["mariadb", "--no-defaults", "--user=root", f"--socket={place.socket}"]


def _execute(place: Place, processes: Processes, name: str, words: str) -> None:
    processes.run(name, [*_client(place), f"--execute={words}"])


def _succeeds(command: list[str]) -> bool:
    done = subprocess.run(command, capture_output=True, check=False, env={"PATH": PATH})
    return done.returncode == 0
