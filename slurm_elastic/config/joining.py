"""How fresh machines become nodes: the section ``join`` of the configuration, as frozen values."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct

from slurm_elastic.config.numbers import Port, Seconds

CONSOLE = "console"
"""``Ssh.host_key`` where each machine's own keys are read from its console output."""


class Ssh(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Slurm's secret is brought to each machine by SSH, as ``user`` with the private ``key``.

    It is either ``munge_key``, the copy of the munge key that SlurmUser may read, or
    ``slurm_keys``, the head's slurm.jwks of auth/slurm, of which each cloud's machines get theirs.
    ``host_key`` is ``console``, or the public key (``ssh-ed25519 AAAA...``) that all machines have
    from their image. ``timeout`` is for one try at one machine, ``at_once`` how many are served at
    a time.
    """

    key: str
    munge_key: str | None = None
    slurm_keys: str | None = None
    user: str = "root"
    port: Port = 22
    host_key: str = CONSOLE
    target: str | None = None
    timeout: Seconds = 20.0
    at_once: Annotated[int, Meta(ge=1, le=100)] = 10

    @property
    def secret(self) -> str:
        """The file that is brought, or that what is brought is taken from."""
        return self.slurm_keys or self.munge_key or ""

    @property
    def place(self) -> str:
        """Where it goes on the machine."""
        usual = "/etc/slurm/slurm.jwks" if self.slurm_keys else "/etc/munge/munge.key"
        return self.target or usual


class NetworkKind(StrEnum):
    """How machines reach the head: as they are, or by a tunnel that they open to it."""

    NONE = "none"
    WIREGUARD = "wireguard"


class CloudInit(StrEnum):
    """Whether cloud-init runs when a machine that was stopped boots again: only at its first boot,
    where nothing in cloud-init's settings is for each; or at all.
    """

    ONCE = "once"
    EACH_BOOT = "each-boot"


class Enrol(StrEnum):
    """How a machine's public key comes to the head: by its console, or by a key that is good for
    that alone, once, for ten minutes.
    """

    CONSOLE = "console"
    ONCE = "once"


class Firewall(StrEnum):
    """By which program the head's ports are closed to all but live machines."""

    NFTABLES = "nftables"


class Network(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The network between machines and the head (``slurm_elastic.machine.hub`` is its end on the
    head).

    A tunnel goes to ``endpoint`` (``name:port``, UDP) and has the addresses of ``subnet``, the
    first of them the head's; the networks ``routes`` are reached through it, too. ``mtu`` in bytes.
    ``clouds``: whose machines open one (empty: of all clouds that are told by user data).
    ``node_ports``: TCP ports that machines may reach of each other (empty: all). ``public_key`` is
    the file of the head's public key, beside the private one, which root alone reads; ``socket``
    is root's part's.

    ``ports``: TCP ports of the head that live machines reach through a tunnel, besides Slurm's own.
    ``firewall``: they are open to live machines and to the networks ``trusted`` only.
    """

    kind: NetworkKind = NetworkKind.WIREGUARD
    endpoint: str | None = None
    subnet: str = "10.99.0.0/16"
    routes: tuple[str, ...] = ()
    mtu: Annotated[int, Meta(ge=576, le=9000)] = 1380
    clouds: tuple[str, ...] = ()
    enrol: Enrol | None = None
    node_ports: tuple[Port, ...] = ()
    interface: str = "wg-se"
    public_key: str = "/etc/slurm-elastic/wireguard.pub"
    socket: str = "/run/slurm-elastic-hub/hub.sock"
    firewall: Firewall | None = None
    ports: tuple[Port, ...] = (6817,)
    trusted: tuple[str, ...] = ()

    @property
    def tunnels(self) -> bool:
        """Whether machines open a tunnel."""
        return self.kind is NetworkKind.WIREGUARD

    @property
    def listen_port(self) -> int:
        """The UDP port of the tunnel."""
        return int((self.endpoint or ":51820").rpartition(":")[2])

    @property
    def private_key(self) -> str:
        """The file of the head's private key."""
        return self.public_key.removesuffix(".pub") + ".key"


class Join(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The facts that machines are told besides their node's name. Without ``head`` nothing: their
    image or the cloud's ``user_data`` starts slurmd.

    ``head`` (``name`` or ``name:port``) is where slurmd gets its configuration. ``template`` is a
    site's own text in place of ``programs/join.sh``. ``metadata_for_jobs``: whether others than
    root may ask the cloud's metadata service (user data, the machine's role) on machines. The
    dead-man switch: a machine without job that Slurm has not needed for ``heartbeat_timeout`` s
    runs ``stop_command``.

    The gate: slurmd starts only where the command ``check`` exits 0 within ``check_timeout`` s;
    ``wipe`` are directories of the machines that are emptied of a user's files after the user's
    last job there. ``cloud_init`` is about machines of pools that keep stopped ones.
    """

    head: str | None = None
    template: str | None = None
    heartbeat_timeout: Seconds = 900.0
    stop_command: str = "shutdown -h now"
    metadata_for_jobs: bool = False
    ssh: Ssh | None = None
    check: str | None = None
    check_timeout: Seconds = 60.0
    wipe: tuple[str, ...] = ()
    cloud_init: CloudInit = CloudInit.ONCE
    network: Network | None = None
