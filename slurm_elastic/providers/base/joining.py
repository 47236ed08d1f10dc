"""The program that makes a machine join as its node: ``programs/join.sh``, or the site's own
template, with its placeholders filled.

The text is the same for all machines of a cloud. Each cloud has its own way to give a machine its
node's name and the facts of its launch. The munge key is never part of the text.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from slurm_elastic.base.errors import ConfigError, reason_of
from slurm_elastic.base.hostlist import compress
from slurm_elastic.config import Cluster, Config
from slurm_elastic.config.basics import scratch
from slurm_elastic.config.basics.metadata_service import MetadataService, WarningProtocol
from slurm_elastic.config.clouds import CloudSettings
from slurm_elastic.config.mounting import MachineMount, mounts_of
from slurm_elastic.config.sections.copying import Data
from slurm_elastic.config.sections.joining import CloudInit, Join, Network
from slurm_elastic.config.tunnel import clouds_with_tunnel, node_addresses, nodes_by_pool
from slurm_elastic.machine.hub.ports import with_port
from slurm_elastic.machine.programs import agent
from slurm_elastic.model.cluster import LaunchSpec
from slurm_elastic.policies.repair.tunnel_addresses import ENROL_PORT, enrolment_key, head_address
from slurm_elastic.providers.base import shortened
from slurm_elastic.providers.base.user_data import KINDS, read_part
from slurm_elastic.slurm.client import siteconf
from slurm_elastic.slurm.conf import fragment

_PROGRAMS = Path(__file__).parents[2] / "machine" / "programs"
KEY_MARK = "/var/lib/slurm-elastic-node/munge-key"
"""This file exists once the munge key has arrived. slurmd starts after that. The file survives a
reboot.
"""
TUNNEL_MARK = "/run/slurm-elastic/tunnel"
"""This file exists once the tunnel to the head is up. It is gone after a reboot."""
_COPY_MARGIN_S = 60.0
"""So much longer than the head copies files back does the Epilog wait before it removes them."""
TUNNEL_KEY = "/var/lib/slurm-elastic-node/wireguard.key"
"""The machine's own private key, which never leaves the machine."""


# Not ``$name``: the text is a shell program, which is full of these.
_PLACEHOLDER = re.compile(r"@(?:@(?=\{)|\{(?P<name>[^{}\s]*)\})")
"""``@{name}`` is a placeholder, and ``@@{`` stands for ``@{``. Everything else is left as it is,
``$`` too.
"""


def program_of(config: Config, cloud: CloudSettings) -> str:
    """The part of user data that makes a machine of ``cloud`` join; empty without ``join.head``.

    ConfigError if the site's template cannot be used.
    """
    join = config.join
    if join.head is None or not cloud.by_user_data:
        return ""
    network = join.network if cloud.name in clouds_with_tunnel(config) else None
    # slurmd must not start before these files exist: without the munge key or the tunnel it could
    # not register.
    marks = (KEY_MARK if join.ssh else "", TUNNEL_MARK if network else "")
    values = {
        "agent": _agent(cloud.metadata.protocol),
        "cloud": cloud.name,
        "cluster": config.cluster.name,
        "conf_server": with_port(join.head, config.slurm.conf),
        "head": join.head,
        "heartbeat_timeout": f"{join.heartbeat_timeout:g}",
        "key_mark": " ".join(filter(None, marks)),
        "later_boots": later_boots(config, cloud),
        "metadata": _metadata_setting(cloud.metadata),
        "metadata_addresses": " ".join(cloud.metadata.addresses),
        "metadata_ports": closed_ports(cloud.metadata),
        "metadata_rules": closing_rules(cloud.metadata),
        "names": _python("names.py"),
        "owed": f"{config.copy.back_within:g}" if cloud.data is Data.COPY else "",
        "open_metadata": "yes" if join.metadata_for_jobs else "",
        # A cloud that has a command of its own needs it: there a plain shutdown goes on costing.
        "slurm_keys": shlex.quote(_slurm_keys(join)),
        "stop_command": cloud.stop_command or join.stop_command,
        "check": join.check or "",
        "check_timeout": f"{join.check_timeout:g}",
        "prepare": preparing(config, cloud),
        "wipe": wiping(join.wipe, config.copy.back_within),
        "tunnel": _python("tunnel.py") if network else "",
        "tunnel_settings": tunnel_settings(config, network) if network else "",
    }
    if join.template is None:
        return _filled(_shell("join.sh"), values)
    text = read_part(join.template, "join.template")
    if join.mounts and "@{prepare}" not in text:
        # slurmd would start there with empty homes.
        raise ConfigError(f"join.template: {join.template} has no @{{prepare}}: see join.mounts")
    return fill(text, join.template, values)


def _slurm_keys(join: Join) -> str:
    """The file of auth/slurm's keys on a machine, which then needs no munge."""
    return join.ssh.place if join.ssh and join.ssh.slurm_keys else "/etc/slurm/slurm.jwks"


def closing_rules(service: MetadataService) -> str:
    """The rules of nft that refuse TCP to the addresses of the metadata service."""
    ports = ", ".join(str(port) for port in service.open_ports)
    closed = f"tcp dport != {{ {ports} }}" if ports else "meta l4proto tcp"
    by_family = {
        "ip": [address for address in service.addresses if ":" not in address],
        "ip6": [address for address in service.addresses if ":" in address],
    }
    return "\n".join(
        f"    {family} daddr {{ {', '.join(addresses)} }} {closed} reject with tcp reset"
        for family, addresses in by_family.items()
        # nft refuses an empty set.
        if addresses
    )


def closed_ports(service: MetadataService) -> str:
    """The match of iptables for the ports that ``closing_rules`` closes. Empty: all of them."""
    ports = ",".join(str(port) for port in service.open_ports)
    return f"-m multiport ! --dports {ports}" if ports else ""


def tunnel_settings(config: Config, network: Network) -> str:
    """The settings of ``programs/tunnel.py`` as JSON. ConfigError if the head has no key yet."""
    try:
        public = Path(network.public_key).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"join.network.public_key: {network.public_key} cannot be read: {reason_of(error)}; "
            "slurm-elastic-hub makes it when it starts"
        ) from error
    addresses = node_addresses(config)
    return json.dumps(
        {
            "public_key": public,
            "endpoint": "" if network.head_opens else network.endpoint,
            "port": network.udp_port if network.head_opens else 0,
            "interface": network.interface,
            "mtu": network.mtu,
            "networks": network.inside,
            "head": head_address(network.subnet),
            "enrol_port": ENROL_PORT,
            "key": TUNNEL_KEY,
            "mark": TUNNEL_MARK,
            "console": "/dev/console",
            "pools": {
                pool: {"first": addresses[nodes[0]], "nodes": compress(nodes)}
                for pool, nodes in nodes_by_pool(config).items()
            },
        }
    )


def later_boots(config: Config, cloud: CloudSettings) -> str:
    """The program that lets a stopped machine start again without cloud-init; empty if no pool of
    the cloud stops machines, because user data is short of room, or if cloud-init must run at each
    boot.
    """
    stops = any(pool.max_stopped for pool in config.pools if pool.cloud == cloud.name)
    if not stops or config.join.cloud_init is CloudInit.EACH_BOOT:
        return ""
    return _shell("again.sh")


def preparing(config: Config, cloud: CloudSettings) -> str:
    """The program that runs before slurmd starts; empty if there is nothing to prepare."""
    programs = [mounting(mounts_of(config, cloud))]
    if config.join.wipe:
        programs.append(
            _filled(_shell("epilog.sh"), {"site_epilog": site_epilog(config.slurm.conf)})
        )
    # Each in a subshell, because each may exit.
    return "\n".join(f"(\n{program}\n) || exit 1" for program in programs if program)


def site_epilog(slurm_conf: str) -> str:
    """The Epilog of the site's own slurm.conf, a path or a pattern; empty if there is none."""
    try:
        entry = siteconf.read(slurm_conf, ignore=fragment.FILE_NAME).option("Epilog")
    except ConfigError:  # conf check reports it
        return ""
    # It becomes part of a shell program.
    return entry.value if entry and "'" not in entry.value else ""


def mounting(mounts: Sequence[MachineMount]) -> str:
    """The program that mounts these directories; empty if there are none."""
    if not mounts:
        return ""
    lines = (
        f"{mount.path} {mount.source} {mount.options} {'yes' if mount.required else 'no'}"
        for mount in mounts
    )
    return _filled(_shell("mounts.sh"), {"mounts": "\n".join(lines)})


def wiping(directories: Sequence[str], back_within: float) -> str:
    """The program that slurmd runs as Epilog to empty these directories; empty if there are
    none. It first waits until copied files are back in the head's directories, or are given up.
    """
    if not directories:
        return ""
    text = (_PROGRAMS / "slurm-elastic-wipe").read_text(encoding="utf-8")
    guard = Path(scratch.__file__).read_text(encoding="utf-8")
    values = {
        "directories": json.dumps(directories), "guard": guard,
        "copy_timeout": f"{back_within + _COPY_MARGIN_S:.0f}",
    }  # fmt: skip
    first_line, _, program = _filled(text, values).partition("\n")
    return f"{first_line}\n{shortened.python(program)}"


def fill(text: str, path: str, values: Mapping[str, str]) -> str:
    """Fill the placeholders of a site's template.

    ConfigError if a placeholder is unknown, or if cloud-init would not recognise the text.
    """
    if not text.startswith(tuple(KINDS)):
        raise ConfigError(
            f"join.template: {path} begins with none of cloud-init's {', '.join(KINDS)}"
        )
    try:
        return _filled(text, values)
    except KeyError as error:
        known_names = ", ".join(f"@{{{name}}}" for name in sorted(values))
        raise ConfigError(
            f"join.template: {path} has the placeholder @{{{error.args[0]}}}, expected one of "
            f"{known_names}; a plain @{{ is written @@{{"
            # Not chained: a KeyError says nothing to the author of the template.
        ) from None


def _filled(text: str, values: Mapping[str, str]) -> str:
    def value(match: re.Match[str]) -> str:
        name = match["name"]
        return "@" if name is None else values[name]

    return _PLACEHOLDER.sub(value, text)


def facts_of(cluster: Cluster, spec: LaunchSpec) -> dict[str, str]:
    """The facts that each machine of a launch gets, except its node. ``max_age`` (s) and ``gres``
    only if the pool has them; ``stopped`` if idle machines may be stopped and started again.
    """
    facts = {"cluster": cluster.name, "pool": spec.pool.name, "generation": spec.generation}
    age, gres = spec.pool.max_age, spec.pool.gres
    facts |= {"gres": ",".join(f"{name}:{count}" for name, count in gres.items())} if gres else {}
    facts |= {"enrol": spec.enrol} if spec.enrol else {}
    facts |= {"stopped": "yes"} if spec.pool.stopped else {}
    return facts if age is None else facts | {"max_age": f"{age:g}"}


def own_facts(cluster: Cluster, spec: LaunchSpec, node: str) -> dict[str, str]:
    """The facts of ``facts_of`` for the machine of one node, with the node and its own enrolment
    key. The launch's secret is removed: with it, a machine could enrol in the place of another one.
    """
    # ``enrol`` must not stay: it is the secret of the whole launch.
    facts = facts_of(cluster, spec) | {"node": node}
    launch_secret = facts.pop("enrol", "")
    return facts | ({"enrol_key": enrolment_key(launch_secret, node)} if launch_secret else {})


def _metadata_setting(service: MetadataService) -> str:
    """The agent's setting ``PROTOCOL URL``. Empty if machines get no warnings."""
    return f"{service.protocol} {service.url}" if service.protocol else ""


def _agent(protocol: WarningProtocol) -> str:
    """The agent's text, with the one class that reads the warnings of this protocol."""
    source = (_PROGRAMS / "agent.py").read_text(encoding="utf-8")
    unneeded = {c.__name__ for c in agent.Metadata.__subclasses__() if c.protocol != protocol}
    return shortened.python(shortened.without(source, unneeded))


def _python(name: str) -> str:
    return shortened.python((_PROGRAMS / name).read_text(encoding="utf-8"))


def _shell(name: str) -> str:
    return shortened.shell((_PROGRAMS / name).read_text(encoding="utf-8"))
