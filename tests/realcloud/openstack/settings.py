"""The services' configuration files, from a directory and ports. Pure but for ``write``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

REGION = "RegionOne"
PASSWORD = "control-plane-of-a-test"
"""The password of every account; it opens nothing but this control plane."""
DATABASES = ("keystone", "placement", "glance", "nova_api", "nova", "nova_cell0")
USER, ADMIN = "elastic", "admin"
HOST = "control"
"""nova's only one."""

Options = Mapping[str, Mapping[str, object]]


@dataclass(frozen=True)
class Ports:
    """TCP ports on loopback."""

    keystone: int
    placement: int
    glance: int
    network: int
    nova: int
    rabbit: int
    rabbit_peers: int
    epmd: int


@dataclass(frozen=True)
class Place:
    """Where a control plane lies. ``page``: nova's own bound for the length of a list."""

    dir: Path
    venv: Path
    ports: Ports
    page: int

    @property
    def etc(self) -> Path:
        return self.dir / "etc"

    @property
    def log(self) -> Path:
        return self.dir / "log"

    @property
    def socket(self) -> Path:
        """MariaDB's; it listens on no port."""
        return self.dir / "db.sock"

    @property
    def auth_url(self) -> str:
        return f"http://127.0.0.1:{self.ports.keystone}/v3"

    @property
    def rabbit_url(self) -> str:
        return f"rabbit://guest:guest@127.0.0.1:{self.ports.rabbit}/"

    def database(self, name: str) -> str:
        return f"mysql+pymysql://root@localhost/{name}?unix_socket={self.socket}&charset=utf8"

    def endpoint(self, service: str) -> str:
        """The base URL of a service, as the catalog has it."""
        tail = {"keystone": "/v3", "nova": "/v2.1"}.get(service, "")
        return f"http://127.0.0.1:{getattr(self.ports, service)}{tail}"


def _account(place: Place, name: str) -> dict[str, object]:
    return {
        "auth_url": place.auth_url,
        "auth_type": "password",
        "username": name,
        "password": PASSWORD,
        "project_name": "service",
        "user_domain_id": "default",
        "project_domain_id": "default",
        "region_name": REGION,
    }


def _keystone(place: Place) -> Options:
    return {
        "DEFAULT": {"log_file": place.log / "keystone-own.log"},
        "database": {"connection": place.database("keystone")},
        "token": {"provider": "fernet", "expiration": 86400},
        "fernet_tokens": {"key_repository": place.dir / "fernet"},
        "credential": {"key_repository": place.dir / "credential"},
        "identity": {"password_hash_rounds": 4},
        "cache": {"enabled": True, "backend": "dogpile.cache.memory"},
    }


def _placement(place: Place) -> Options:
    return {
        "api": {"auth_strategy": "keystone"},
        "placement_database": {"connection": place.database("placement")},
        "keystone_authtoken": _account(place, "placement"),
    }


def _glance(place: Place) -> Options:
    return {
        "DEFAULT": {
            "bind_host": "127.0.0.1",
            "bind_port": place.ports.glance,
            "workers": 0,
            "enabled_backends": "files:file",
            "use_keystone_limits": False,
        },
        "glance_store": {"default_backend": "files"},
        "files": {"filesystem_store_datadir": place.dir / "images"},
        "database": {"connection": place.database("glance")},
        "keystone_authtoken": _account(place, "glance"),
        "paste_deploy": {
            "flavor": "keystone",
            "config_file": place.venv / "etc" / "glance" / "glance-api-paste.ini",
        },
        "oslo_concurrency": {"lock_path": place.dir / "locks"},
    }


def _nova(place: Place) -> Options:
    account = _account(place, "nova")
    return {
        "DEFAULT": {
            "my_ip": "127.0.0.1",
            "host": HOST,
            "state_path": place.dir / "nova",
            "transport_url": place.rabbit_url,
            "compute_driver": "slurm_elastic_test.Hypervisor",
            "enabled_apis": "osapi_compute",
            "osapi_compute_listen": "127.0.0.1",
            "osapi_compute_listen_port": place.ports.nova,
            "osapi_compute_workers": 1,
            "vif_plugging_is_fatal": False,
            "vif_plugging_timeout": 0,
            "sync_power_state_interval": -1,
            "reserved_host_memory_mb": 0,
            "max_concurrent_builds": 20,
        },
        "api": {"auth_strategy": "keystone", "max_limit": place.page},
        "wsgi": {"api_paste_config": place.venv / "etc" / "nova" / "api-paste.ini"},
        "api_database": {"connection": place.database("nova_api")},
        "database": {"connection": place.database("nova")},
        "keystone_authtoken": account,
        "service_user": {"send_service_user_token": True, **account},
        "placement": account,
        "neutron": account,
        "cinder": account,
        "glance": {"api_servers": place.endpoint("glance")},
        "scheduler": {"workers": 1},
        "conductor": {"workers": 1},
        "vnc": {"enabled": False},
        "quota": {"instances": -1, "cores": -1, "ram": -1},
        "oslo_concurrency": {"lock_path": place.dir / "locks"},
    }


def clouds(place: Place) -> dict[str, object]:
    """For a clouds.yaml: ``site`` as a user has it, ``admin`` as its administrators have it."""

    def entry(user: str, project: str) -> dict[str, object]:
        auth = {
            "auth_url": place.auth_url,
            "username": user,
            "password": PASSWORD,
            "project_name": project,
            "user_domain_id": "default",
            "project_domain_id": "default",
        }
        return {"auth": auth, "region_name": REGION}

    return {"clouds": {"site": entry(USER, "hpc"), "admin": entry(ADMIN, "admin")}}


def write(place: Place) -> None:
    """All files, in a directory that is nobody else's."""
    for name in ("etc", "etc/placement", "log", "images", "nova", "locks", "rabbit/log"):
        (place.dir / name).mkdir(parents=True, exist_ok=True)
    files = {
        "keystone.conf": _keystone(place),
        "placement/placement.conf": _placement(place),
        "glance-api.conf": _glance(place),
        "nova.conf": _nova(place),
    }
    for name, options in files.items():
        (place.etc / name).write_text(_ini(options))
    file = place.etc / "clouds.yaml"
    file.touch(mode=0o600)
    file.write_text(yaml.safe_dump(clouds(place)))


def _ini(options: Options) -> str:
    lines = []
    for section, values in options.items():
        lines += [f"[{section}]", *(f"{key} = {value}" for key, value in values.items())]
    return "\n".join(lines) + "\n"
