"""The Docker engines of a cloud: a part of the configuration, as frozen values."""

from __future__ import annotations

from msgspec import Struct

from slurm_elastic.config.numbers import Cpus, Mebibytes


class DockerHost(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An engine: ``unix:///path``, ``tcp://host:port`` with TLS by the three files, or
    ``ssh://user@host`` with the keys and known hosts of the user slurm.

    ``cpus`` and ``memory`` are what containers may have of the host; None is all it has.
    """

    url: str = "unix:///var/run/docker.sock"
    cpus: Cpus | None = None
    memory: Mebibytes | None = None
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
