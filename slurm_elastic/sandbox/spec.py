"""The description of a sandbox, and the two configuration files that follow from it. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from slurm_elastic.base.hostlist import expand
from slurm_elastic.image.recipe import LOGIN

DEFAULT_DIR = Path("/tmp/slurm-elastic-sandbox")  # noqa: S108 - made 0755 by root, with a marker
IMAGE = "ami-12c6146b"
"""The machines' image in the emulated EC2, the only one that it has of its own."""
VIRTUAL_HEAD = "10.77.0.254"
"""The head's address for virtual machines, on this host's end of their network."""
PARTITION = "batch"
RECORDS = ("nodename=", "partitionname=")


class SandboxSpec(Struct, frozen=True, kw_only=True):
    """A cluster on one machine: a site with static nodes, and slurm-elastic beside it.

    ``elastic`` is merged over the default configuration: mappings key by key, lists of named
    things (clouds, pools) by name, all else replaced; clouds and pools named in ``drop`` are left
    out. ``slurm_conf`` are further lines of the site's slurm.conf; one that sets what the sandbox
    sets too replaces it. ``boot_seconds`` is how long an emulated machine takes to start,
    ``never_boot`` a hostlist of nodes whose machines never come up. ``memory`` (MiB) and ``cpus``
    are of each node. With ``dead_man`` each emulated machine has the agent, with this
    heartbeat_timeout (s); ``check`` is then its gate's command. ``image`` is a file from which the
    machines of EC2 are booted as virtual ones, instead of being processes; they have the agent
    then, and the shipped text of joining. A ``bare`` one has the site and the emulated clouds, and
    nothing of slurm-elastic yet. ``groups`` may burst. ``prices``
    is a CSV trace of spot prices (None: the shipped day), of which ``price_speed`` seconds pass in
    one.
    """

    dir: Path = DEFAULT_DIR
    static_nodes: int = 2
    cpus: int = 2
    memory: int = 1000
    slurm_conf: tuple[str, ...] = ()
    slurm_files: dict[str, str] = field(default_factory=dict)
    elastic: dict[str, Any] = field(default_factory=dict)
    drop: tuple[str, ...] = ()
    bare: bool = False
    groups: tuple[str, ...] = ("nogroup", "root")
    boot_seconds: float = 2.0
    local_boot_seconds: float = 1.0
    never_boot: str = ""
    dead_man: float | None = None
    check: str = ""
    image: str = ""
    prices: str | None = None
    price_speed: float = 60.0
    power_save_interval: int = 1
    suspend_time: float = 15.0
    resume_timeout: float = 60.0
    suspend_timeout: float = 10.0


class Ports(Struct, frozen=True, kw_only=True):
    """TCP ports on loopback; ``nodes`` is the first of one port for each node."""

    slurmctld: int
    slurmd: int
    ec2: int
    one: int
    nodes: int


def ports_needed(spec: SandboxSpec) -> int:
    """How many consecutive ports the sandbox takes."""
    pools = merged(default_elastic(spec), spec)["pools"]
    return 4 + spec.static_nodes + sum(len(expand(p["nodes"])) for p in pools)


def ports_from(first: int) -> Ports:
    """The block of ports that begins at ``first``."""
    return Ports(slurmctld=first, slurmd=first + 1, ec2=first + 2, one=first + 3, nodes=first + 4)


def cloud_of(spec: SandboxSpec, provider: str) -> dict[str, Any] | None:
    """The first cloud of that provider, as configured; None where there is none."""
    clouds = elastic(spec, ports_from(1024))["clouds"]
    return next((c for c in clouds if c["provider"] == provider), None)


def static_names(spec: SandboxSpec) -> list[str]:
    """The site's own nodes."""
    return [f"st{n}" for n in range(1, spec.static_nodes + 1)]


def site_conf(spec: SandboxSpec, ports: Ports, host: str) -> str:
    """The site's slurm.conf as it was before slurm-elastic came."""
    own = {line.partition("=")[0].strip().lower() for line in spec.slurm_conf if not _record(line)}
    lines = [f"{key}={value}" for key, value in _options(spec, ports, host).items()
             if key.lower() not in own]  # fmt: skip
    lines += [line for line in spec.slurm_conf if not _record(line)]
    if spec.static_nodes:
        low, high = ports.nodes, ports.nodes + spec.static_nodes - 1
        port = f"{low}-{high}" if high > low else str(low)
        name = f"st[1-{spec.static_nodes}]" if high > low else "st1"
        size = f"CPUs={spec.cpus} RealMemory={spec.memory} State=UNKNOWN"
        lines += [
            f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} {size}",
            f"PartitionName={PARTITION} Nodes={name} Default=YES DefaultTime=10 State=UP",
        ]
    lines += [line for line in spec.slurm_conf if _record(line)]
    return "\n".join(lines) + "\n"


def _record(line: str) -> bool:
    return line.strip().lower().startswith(RECORDS)


def _options(spec: SandboxSpec, ports: Ports, host: str) -> dict[str, str]:
    root = spec.dir
    return {
        "ClusterName": "sandbox",
        "SlurmctldHost": f"{host}({VIRTUAL_HEAD if spec.image else '127.0.0.1'})",
        "SlurmUser": "slurm",
        "SlurmctldPort": str(ports.slurmctld),
        "SlurmdPort": str(ports.slurmd),
        "AuthType": "auth/munge",
        "AuthInfo": f"socket={root}/run/munge.socket",
        "StateSaveLocation": f"{root}/slurmctld",
        "SlurmctldPidFile": f"{root}/slurmctld/slurmctld.pid",
        "SlurmctldLogFile": f"{root}/log/slurmctld.log",
        "SlurmdSpoolDir": f"{root}/spool/%n",
        "SlurmdPidFile": f"{root}/run/slurmd-%n.pid",
        "SlurmdLogFile": f"{root}/log/slurmd-%n.log",
        "SlurmctldDebug": "verbose",
        "SlurmdDebug": "verbose",
        "ProctrackType": "proctrack/linuxproc",
        "MpiDefault": "none",
        "MailProg": "/bin/true",
        "ReturnToService": "2",
        "SlurmdTimeout": "30",
        "SchedulerType": "sched/backfill",
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_Core_Memory",
        "DefMemPerCPU": str(max(1, spec.memory // (4 * spec.cpus))),
        # Many slurmd's share this host: they report its size, not the size of their node.
        "SlurmdParameters": "config_overrides",
        "SchedulerParameters": "batch_sched_delay=0,sched_interval=5",
        "SlurmctldParameters": f"power_save_interval={spec.power_save_interval}"
        ",power_save_min_interval=0",
    }


def default_elastic(spec: SandboxSpec) -> dict[str, Any]:
    """A hybrid site: two machines on-premises, six at an emulated EC2 on spot and on-demand."""
    root = spec.dir
    return {
        "cluster": {"name": "sandbox"},
        "state_dir": f"{root}/state",
        "slurm": {"conf": f"{root}/etc/slurm.conf", "programs_dir": f"{root}/programs"},
        "users": {"socket": f"{root}/door/read.sock"},
        "who": {"groups": list(spec.groups), "max_time": "1h", "default_time": "10m"},
        "limits": {"dollars_per_hour": 2.0},
        "timings": {
            "suspend_time": spec.suspend_time,
            "resume_timeout": spec.resume_timeout,
            "suspend_timeout": spec.suspend_timeout,
            "reconcile": 2.0,
            "capacity_cooldown": 20.0,
            "quota_cooldown": 60.0,
            "cooldown_max": 120.0,
            "grace": 20.0,
        },
        "checkpoint": {"expected": 10.0, "notices": {"every": 1.0}},
        "clouds": [_onprem(root), _aws()],
        "pools": _pools(spec),
    }


def joining(spec: SandboxSpec, ports: Ports) -> dict[str, Any]:
    """The section ``join`` for virtual machines: they find the head, and get its munge key."""
    etc = spec.dir / "etc"
    return {
        "head": f"{VIRTUAL_HEAD}:{ports.slurmctld}",
        "heartbeat_timeout": spec.dead_man or spec.resume_timeout + 60.0,
        "ssh": {"key": f"{etc}/login", "munge_key": f"{etc}/login-munge.key", "user": LOGIN},
    }


def machine_part(spec: SandboxSpec) -> str:
    """The user data of virtual machines: the places that slurm.conf names are this host's."""
    root = spec.dir
    return f"""\
#cloud-boothook
#!/bin/sh
mkdir -p {root}/run {root}/spool {root}/log
ln -sfn /run/munge/munge.socket.2 {root}/run/munge.socket
"""


def _onprem(root: Path) -> dict[str, Any]:
    return {
        "name": "onprem",
        "provider": "local",
        "location": "on-premises",
        "socket": f"{root}/run/local.sock",
    }


def _aws() -> dict[str, Any]:
    return {
        "name": "aws",
        "provider": "aws",
        "location": "public",
        "region": "us-east-1",
        "image": IMAGE,
        "zones": ["us-east-1a", "us-east-1b", "us-east-1c"],
        "types": {
            "m5.large": {"cpus": 2, "memory": 8192, "price": 0.096},
            "c5.large": {"cpus": 2, "memory": 4096, "price": 0.085},
        },
    }


def _pools(spec: SandboxSpec) -> list[dict[str, Any]]:
    size = {"cpus": spec.cpus, "memory": spec.memory + 256, "real_memory": spec.memory}
    onprem = {"name": "op", "cloud": "onprem", "nodes": "op[1-2]", **size}
    public = {
        "name": "pub",
        "cloud": "aws",
        "nodes": "pub[1-6]",
        "instance_types": ["c5.large", "m5.large"],
        "markets": ["spot", "on-demand"],
        **size,
    }
    return [onprem, public]


def elastic(spec: SandboxSpec, ports: Ports) -> dict[str, Any]:
    """The slurm-elastic.yaml, as a mapping: endpoint and node ports filled in where not given."""
    base = default_elastic(spec)
    if spec.image:
        base["join"] = joining(spec, ports)
    config = merged(base, spec)
    for cloud in config["clouds"]:
        if cloud["provider"] == "aws":
            cloud.setdefault("endpoint", f"http://127.0.0.1:{ports.ec2}")
            if spec.image:
                cloud.setdefault("user_data", f"{spec.dir}/etc/machine-part")
        if cloud["provider"] == "opennebula":
            cloud.setdefault("endpoint", f"http://127.0.0.1:{ports.one}/RPC2")
            cloud["auth"] = f"{spec.dir}/one/one_auth"
    port = ports.nodes + spec.static_nodes
    for pool in config["pools"]:
        pool.setdefault("slurmd_port", port)
        port += len(expand(pool["nodes"]))
    return config


def merged(base: Mapping[str, Any], spec: SandboxSpec) -> dict[str, Any]:
    """``spec.elastic`` over ``base``, and what ``spec.drop`` names left out."""
    config: dict[str, Any] = _over(base, spec.elastic)
    gone = {*spec.drop}
    config["clouds"] = [c for c in config["clouds"] if c["name"] not in gone]
    config["pools"] = [p for p in config["pools"] if gone.isdisjoint((p["name"], p["cloud"]))]
    return config


def _over(base: Any, top: Any) -> Any:  # noqa: ANN401 - YAML values
    if isinstance(base, Mapping) and isinstance(top, Mapping):
        both = {k: _over(base[k], top[k]) for k in base.keys() & top.keys()}
        return deepcopy(dict(base)) | deepcopy(dict(top)) | both
    if _named(base) and _named(top):
        return _by_name(base, top)
    return deepcopy(top)


def _by_name(
    base: Sequence[Mapping[str, Any]], top: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    changes = {item["name"]: item for item in top}
    known = {item["name"] for item in base}
    kept = [_over(item, changes.get(item["name"], {})) for item in base]
    return kept + [deepcopy(dict(item)) for item in top if item["name"] not in known]


def _named(value: Any) -> bool:  # noqa: ANN401 - YAML values
    return isinstance(value, list) and all(isinstance(v, Mapping) and "name" in v for v in value)
