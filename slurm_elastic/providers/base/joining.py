"""The program that a machine runs to become its node: ``programs/join.sh``, or the site's own,
filled in.

The same text for all machines of a cloud: a node's name and its launch's facts come another way,
each cloud has its own. The munge key is never part of it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from slurm_elastic.base.errors import ConfigError, why
from slurm_elastic.base.hostlist import compress
from slurm_elastic.config import Cluster, Config, scratch
from slurm_elastic.config.clouds import CloudSettings
from slurm_elastic.config.joining import CloudInit, Join, Network
from slurm_elastic.config.tunnel import clouds_with_tunnel, node_addresses, nodes_by_pool
from slurm_elastic.model.cluster import LaunchSpec
from slurm_elastic.policies.repair.peers import ENROL_PORT, enrolment_key, head_address
from slurm_elastic.providers.base.user_data import KINDS, read_part

_PROGRAMS = Path(__file__).parents[2] / "machine" / "programs"
KEY_MARK = "/var/lib/slurm-elastic-node/munge-key"
"""The file that says that the munge key has come; slurmd starts after it. It outlives a reboot."""
TUNNEL_MARK = "/run/slurm-elastic/tunnel"
"""The file that says that the tunnel to the head is up, since this boot."""
TUNNEL_KEY = "/var/lib/slurm-elastic-node/wireguard.key"
"""The machine's own private key, which stays there."""


_PLACEHOLDER = re.compile(r"@(?:@(?=\{)|\{(?P<name>[^{}\s]*)\})")
"""``@{name}``; ``@@{`` is ``@{``. All else, ``$`` too, is the text's own."""


def program_of(config: Config, cloud: CloudSettings) -> str:
    """The part of user data that makes a machine of ``cloud`` join; empty without ``join.head``.

    ConfigError where the site's template cannot be used.
    """
    join = config.join
    if join.head is None or not cloud.by_user_data:
        return ""
    network = join.network if cloud.name in clouds_with_tunnel(config) else None
    marks = (KEY_MARK if join.ssh else "", TUNNEL_MARK if network else "")
    values = {
        "agent": _code((_PROGRAMS / "agent.py").read_text(encoding="utf-8")),
        "cloud": cloud.name,
        "cluster": config.cluster.name,
        "head": join.head,
        "heartbeat_timeout": f"{join.heartbeat_timeout:g}",
        "key_mark": " ".join(filter(None, marks)),
        "later_boots": later_boots(join),
        "metadata": cloud.metadata,
        "open_metadata": "yes" if join.metadata_for_jobs else "",
        "stop_command": join.stop_command,
        "check": join.check or "",
        "check_timeout": f"{join.check_timeout:g}",
        "wipe": wiping(join.wipe),
        "tunnel": _code((_PROGRAMS / "tunnel.py").read_text(encoding="utf-8")) if network else "",
        "tunnel_settings": tunnel_settings(config, network) if network else "",
    }
    if join.template is None:
        return _filled((_PROGRAMS / "join.sh").read_text(encoding="utf-8"), values)
    return fill(read_part(join.template, "join.template"), join.template, values)


def tunnel_settings(config: Config, network: Network) -> str:
    """The settings of ``programs/tunnel.py``; ConfigError where the head has no key yet."""
    try:
        public = Path(network.public_key).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"join.network.public_key: {network.public_key} cannot be read: {why(error)}; "
            "slurm-elastic-hub makes it when it starts"
        ) from error
    addresses = node_addresses(config)
    return json.dumps(
        {
            "public_key": public,
            "endpoint": network.endpoint,
            "interface": network.interface,
            "mtu": network.mtu,
            "networks": [network.subnet, *network.routes],
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


def later_boots(join: Join) -> str:
    """The program by which a machine's later boots do without cloud-init; empty where cloud-init
    runs at each.
    """
    if join.cloud_init is CloudInit.EACH_BOOT:
        return ""
    return (_PROGRAMS / "again.sh").read_text(encoding="utf-8").rstrip("\n")


def wiping(directories: Sequence[str]) -> str:
    """The program that slurmd runs as Epilog to empty these; empty where there are none."""
    if not directories:
        return ""
    text = (_PROGRAMS / "slurm-elastic-wipe").read_text(encoding="utf-8")
    guard = _code(Path(scratch.__file__).read_text(encoding="utf-8"))
    return _filled(text, {"directories": json.dumps(directories), "guard": guard}).rstrip("\n")


def fill(text: str, path: str, values: Mapping[str, str]) -> str:
    """A site's template with its placeholders filled; ConfigError where there is none of that name,
    or cloud-init would not know what the text is.
    """
    if not text.startswith(tuple(KINDS)):
        raise ConfigError(
            f"join.template: {path} begins with none of cloud-init's {', '.join(KINDS)}"
        )
    try:
        return _filled(text, values)
    except KeyError as error:
        known = ", ".join(f"@{{{name}}}" for name in sorted(values))
        raise ConfigError(
            f"join.template: {path} has the placeholder @{{{error.args[0]}}}, expected one of "
            f"{known}; a plain @{{ is written @@{{"
        ) from None


def _filled(text: str, values: Mapping[str, str]) -> str:
    def value(found: re.Match[str]) -> str:
        name = found["name"]
        return "@" if name is None else values[name]

    return _PLACEHOLDER.sub(value, text)


def facts_of(cluster: Cluster, spec: LaunchSpec) -> dict[str, str]:
    """The facts that all machines of a launch are told, besides their node; ``max_age`` (s) and
    ``gres`` where there are such, ``stopped`` where idle ones may be stopped and started again.
    """
    facts = {"cluster": cluster.name, "pool": spec.pool.name, "generation": spec.generation}
    age, gres = spec.pool.max_age, spec.pool.gres
    facts |= {"gres": ",".join(f"{name}:{count}" for name, count in gres.items())} if gres else {}
    facts |= {"enrol": spec.enrol} if spec.enrol else {}
    facts |= {"stopped": "yes"} if spec.pool.stopped else {}
    return facts if age is None else facts | {"max_age": f"{age:g}"}


def own_facts(cluster: Cluster, spec: LaunchSpec, node: str) -> dict[str, str]:
    """The same for the machine of that node alone: with what is its own, and without the launch's
    word, by which it could enrol in the place of the others.
    """
    facts = facts_of(cluster, spec) | {"node": node}
    word = facts.pop("enrol", "")
    return facts | ({"enrol_key": enrolment_key(word, node)} if word else {})


def _code(source: str) -> str:
    """A program without its module docstring, which only its readers need."""
    _, _, code = source.partition('\n"""\n')
    return code.strip()
