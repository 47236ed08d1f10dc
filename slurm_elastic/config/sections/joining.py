"""The section ``join``: how fresh machines become nodes."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar

from msgspec import Meta, Struct, field

from slurm_elastic.config.basics.numbers import Port, Seconds

CONSOLE = "console"
"""The ``Ssh.host_key`` that means: read each machine's host keys from its console."""


MUNGE_KEY = "munge key"
"""The name of the secret by which a machine's slurmd is believed, if the site uses munge."""


class Ssh(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The head copies Slurm's secret (munge key, or a cloud's slurm.jwks) to machines by SSH."""

    timeout: ClassVar[float] = 20.0
    """Seconds for one try at one machine. A machine that is up answers within one second. The next
    try follows anyway, until the node's ``resume_timeout``.
    """
    at_once: ClassVar[int] = 10
    """Machines served at a time. Each takes about a second, so a hundred take ten."""

    key: str
    """Change it when the key of SlurmUser for machines is in another file."""
    munge_key: str | None = None
    """Change it when the site authenticates by munge and the key must not be part of an image."""
    slurm_keys: str | None = None
    """Change it when the site authenticates by auth/slurm."""
    user: str = "root"
    """Change it when images do not let root in: this user has sudo without a password."""
    port: Port = 22
    """Change it when sshd of the machines listens on another port."""
    host_key: str = CONSOLE
    """Change it when the cloud shows no console: all machines have their image's key."""
    target: str | None = None
    """Change it when munge or Slurm on your image reads its key from another place."""

    @property
    def secret(self) -> str:
        """The file on the head with the secret."""
        return self.slurm_keys or self.munge_key or ""

    @property
    def secret_name(self) -> str:
        """The name of the secret in logs and reasons."""
        return "slurm.jwks" if self.slurm_keys else MUNGE_KEY

    @property
    def place(self) -> str:
        """The file on the machine that gets the secret."""
        usual = "/etc/slurm/slurm.jwks" if self.slurm_keys else "/etc/munge/munge.key"
        return self.target or usual


class NetworkKind(StrEnum):
    """How machines reach the head: by a route of their own, or by a tunnel that they open."""

    NONE = "none"
    WIREGUARD = "wireguard"


class CloudInit(StrEnum):
    """Whether cloud-init runs at each boot of a stopped machine; an image may not need it."""

    ONCE = "once"
    EACH_BOOT = "each-boot"


class Enrol(StrEnum):
    """How the head learns a machine's key: read from its console, or sent by the machine with an
    enrolment key that is valid once and for 10 minutes.
    """

    CONSOLE = "console"
    ONCE = "once"


class Opener(StrEnum):
    """The end that sends the tunnel's first packet. The other end's UDP port must be open to it."""

    MACHINE = "machine"
    HEAD = "head"


class Firewall(StrEnum):
    """The program that closes the head's ports to all but live machines."""

    NFTABLES = "nftables"


_HUB_SOCKET = "/run/slurm-elastic-hub/hub.sock"


class Network(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The network between machines and the head. ``slurm_elastic.machine.hub`` is the head's end.
    The head has the first address of ``subnet``. The head's private key lies beside ``public_key``,
    and only root can read it.
    """

    kind: NetworkKind = NetworkKind.WIREGUARD
    """Change it when machines reach the head without a tunnel and you want only the firewall."""
    opened_by: Opener = Opener.MACHINE
    """Change it when no machine can reach the head: the head then calls the machines."""
    endpoint: str | None = None
    """Change it when the head has another address or port as seen from the clouds."""
    udp_port: Port = 51820
    """Change it when the head calls machines and may send to another UDP port only."""
    subnet: str = "10.99.0.0/16"
    """Change it when 10.99.0.0/16 is in use at your site, or too small for your pools."""
    routes: tuple[str, ...] = ()
    """Change it when machines need other hosts of the site: file servers, licence servers."""
    mtu: Annotated[int, Meta(ge=576, le=9000)] = 1380
    """Change it when packets on the way are smaller than usual, and large transfers hang."""
    clouds: tuple[str, ...] = ()
    """Change it when only some clouds have no route to the head."""
    enrol: Enrol | None = None
    """Change it when the cloud's console is slow, or others may read it."""
    node_ports: tuple[Port, ...] = ()
    """Change it when machines should reach each other on some ports only."""
    interface: str = "wg-se"
    """Change it when another tunnel of the head has this name, as with two clusters on one head."""
    public_key: str = "/etc/slurm-elastic/wireguard.pub"
    """Change it when two clusters have their head on one host, or keys are kept elsewhere."""
    socket: str = _HUB_SOCKET
    """Change it when two clusters have their head on one host."""
    firewall: Firewall | None = None
    """Change it when the head's ports can be reached from networks that you do not trust."""
    head_ports: tuple[Port, ...] = (6817,)
    """Change it when slurmctld listens elsewhere, or machines need NFS or more of the head."""
    trusted_networks: tuple[str, ...] = ()
    """Change it when the firewall is on: the site's own nodes and login nodes are named here."""

    @property
    def tunnels(self) -> bool:
        """Whether there is a tunnel."""
        return self.kind is NetworkKind.WIREGUARD

    @property
    def has_default_socket(self) -> bool:
        """Whether the hub has the default socket, as at most one hub of a host has."""
        return self.socket == _HUB_SOCKET

    @property
    def head_opens(self) -> bool:
        """Whether the head opens the tunnels, to the machines' public addresses."""
        return self.tunnels and self.opened_by is Opener.HEAD

    @property
    def inside(self) -> tuple[str, ...]:
        """The networks to which the tunnel leads."""
        return (self.subnet, *self.routes)

    @property
    def listen_port(self) -> int:
        """The UDP port of the tunnel on the head; if the head opens it, on machines, too."""
        if self.head_opens or self.endpoint is None:
            return self.udp_port
        return int(self.endpoint.rpartition(":")[2])

    @property
    def private_key(self) -> str:
        """The file of the head's private key."""
        return self.public_key.removesuffix(".pub") + ".key"


HEAD = "head"
"""The server of ``Mount.source`` that means the head."""


class Mount(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A directory that machines mount by NFS 4 before slurmd starts."""

    path: str
    """Change it when jobs look for the directory elsewhere."""
    source: str = field(name="from")
    """Change it when another server has the files: HOST:/EXPORT; `head` is the head itself."""
    options: tuple[str, ...] = ()
    """Change it when programs there need suid bits, or jobs may only read."""
    required: bool = True
    """Change it when jobs can run without this directory."""
    clouds: tuple[str, ...] = ()
    """Change it when only some clouds reach the server."""

    @property
    def host(self) -> str:
        """The server; ``HEAD`` is the head."""
        return self.source.partition(":/")[0]

    @property
    def export(self) -> str:
        """The directory on the server."""
        return "/" + self.source.partition(":/")[2]


class Join(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The facts for machines to join. Without ``head`` they get a name only; images do the rest."""

    head: str | None = None
    """Change it when machines should learn where the head is from us and not from your image; for
    two heads name both: head1,head2.
    """
    template: str | None = None
    """Change it when your image becomes a node by other steps than the shipped program's."""
    heartbeat_timeout: Seconds = 900.0
    """Change it when an outage of the head may last longer than a quarter of an hour without
    machines ending themselves.
    """
    stop_command: str = "shutdown -h now"
    """Change it when `shutdown` does not end your image's machine, or not its bill."""
    metadata_for_jobs: bool = False
    """Change it when jobs need the credentials of an instance role, or other metadata."""
    ssh: Ssh | None = None
    check: str | None = None
    """Change it when machines may be bad (GPUs, file systems), and jobs should keep off them."""
    check_timeout: Seconds = 60.0
    """Change it when the check needs longer than a minute."""
    wipe: tuple[str, ...] = ()
    """Change it when users' files should not stay on a machine that the next user gets."""
    cloud_init: CloudInit = CloudInit.ONCE
    """Change it when cloud-init on your image has work at each boot of a stopped machine."""
    network: Network | None = None
    mounts: tuple[Mount, ...] = ()
    """Change it when jobs need their homes or shared directories on machines."""

    @property
    def heads(self) -> tuple[str, ...]:
        """Each host of ``head``, with its port if it has one. Empty without ``head``."""
        return tuple(self.head.split(",")) if self.head is not None else ()
