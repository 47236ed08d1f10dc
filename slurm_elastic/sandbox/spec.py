"""The specification of a sandbox, and the two configuration files made from it. No I/O."""

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
"""The machines' image, the only image that the emulated EC2 has from the start."""
VIRTUAL_HEAD = "10.77.0.254"
"""The head's address in the network of the virtual machines, on this host's end of it."""
PARTITION = "batch"
RECORDS = ("nodename=", "partitionname=")


class SandboxSpec(Struct, frozen=True, kw_only=True):
    """A cluster on one machine: a site with static nodes, and slurm-elastic.

    ``elastic`` is merged into the default configuration: mappings key by key, lists of clouds and
    pools by name; other values are replaced. Clouds and pools named in ``drop`` are left out.
    ``slurm_conf``: further lines of the site's slurm.conf, which replace the sandbox's own settings
    of the same options. ``cpus`` and ``memory`` (MiB): the size of each node.

    ``boot_seconds``: how long an emulated machine boots; ``never_boot``: a hostlist of nodes whose
    machines never boot. ``dead_man``: the heartbeat_timeout (s) of each machine's agent (None: no
    agent); ``check``: the command of the agent's gate. ``image``: a disk image from which EC2's
    machines boot as virtual machines instead of processes; they have the agent, and join by the
    shipped user data.

    ``bare``: only the site and the emulated clouds, without slurm-elastic. ``groups``: the Unix
    groups that may use public clouds. ``prices``: a CSV trace of spot prices (None: the shipped
    day), replayed at ``price_speed`` seconds per second.
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
    """TCP ports on loopback. Each node has one; ``nodes`` is the first of them."""

    slurmctld: int
    slurmd: int
    ec2: int
    one: int
    nodes: int


def ports_needed(spec: SandboxSpec) -> int:
    """Return how many consecutive ports the sandbox needs."""
    pools = merged(default_elastic(spec), spec)["pools"]
    # Four for slurmctld, the site's default slurmd port, EC2 and OpenNebula (``ports_from``).
    return 4 + spec.static_nodes + sum(len(expand(p["nodes"])) for p in pools)


def ports_from(first_port: int) -> Ports:
    """Return the block of ports that begins at ``first_port``."""
    return Ports(
        slurmctld=first_port,
        slurmd=first_port + 1,
        ec2=first_port + 2,
        one=first_port + 3,
        nodes=first_port + 4,
    )


def cloud_of(spec: SandboxSpec, provider: str) -> dict[str, Any] | None:
    """Return the settings of the first cloud of that provider; None if there is none."""
    return next(iter(clouds_of(spec, provider)), None)


def providers_of(spec: SandboxSpec) -> frozenset[str]:
    """Return the kinds of the clouds."""
    clouds = elastic(spec, ports_from(1024))["clouds"]
    return frozenset(str(cloud["provider"]) for cloud in clouds)


def clouds_of(spec: SandboxSpec, provider: str) -> list[dict[str, Any]]:
    """Return the settings of all clouds of that provider."""
    clouds = elastic(spec, ports_from(1024))["clouds"]
    return [cloud for cloud in clouds if cloud["provider"] == provider]


def static_names(spec: SandboxSpec) -> list[str]:
    """Return the names of the site's own nodes."""
    return [f"st{n}" for n in range(1, spec.static_nodes + 1)]


def site_conf(spec: SandboxSpec, ports: Ports, host: str) -> str:
    """Return the site's slurm.conf as before the installation of slurm-elastic."""
    replaced_options = {
        line.partition("=")[0].strip().lower() for line in spec.slurm_conf if not _is_record(line)
    }
    lines = [f"{key}={value}" for key, value in _options(spec, ports, host).items()
             if key.lower() not in replaced_options]  # fmt: skip
    lines += [line for line in spec.slurm_conf if not _is_record(line)]
    if spec.static_nodes:
        low, high = ports.nodes, ports.nodes + spec.static_nodes - 1
        port = f"{low}-{high}" if high > low else str(low)
        name = f"st[1-{spec.static_nodes}]" if high > low else "st1"
        size = f"CPUs={spec.cpus} RealMemory={spec.memory} State=UNKNOWN"
        lines += [
            f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} {size}",
            f"PartitionName={PARTITION} Nodes={name} Default=YES DefaultTime=10 State=UP",
        ]
    lines += [line for line in spec.slurm_conf if _is_record(line)]
    return "\n".join(lines) + "\n"


def _is_record(line: str) -> bool:
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
        # All slurmd processes share this host and report its size, not the size of their node.
        "SlurmdParameters": "config_overrides",
        "SchedulerParameters": "batch_sched_delay=0,sched_interval=5",
        "SlurmctldParameters": f"power_save_interval={spec.power_save_interval}"
        ",power_save_min_interval=0",
        # A virtual machine does not have the file, and its slurm.conf is where Slurm looks for it.
        **({} if spec.image else {"TaskProlog": str(task_prolog(root))}),
    }


def task_prolog(root: Path) -> Path:
    """Return the path of the script from which each task learns where slurm.conf is. Jobs get this
    from their submitter's environment, which a job with ``--export=NONE`` does not have.
    """
    return root / "etc" / "task-prolog"


def default_elastic(spec: SandboxSpec) -> dict[str, Any]:
    """Return the default configuration: a hybrid site with two machines on-premises, and six at an
    emulated EC2 on spot and on-demand.
    """
    root = spec.dir
    return {
        "cluster": {"name": "sandbox"},
        "state_dir": f"{root}/state",
        "slurm": {"conf": f"{root}/etc/slurm.conf", "programs_dir": f"{root}/programs"},
        "users": {"socket": f"{root}/door/read.sock"},
        "allow": {"groups": list(spec.groups), "max_time": "1h", "default_time": "10m"},
        "limits": {"dollars_per_hour": 2.0},
        "timings": {
            "suspend_time": spec.suspend_time,
            "resume_timeout": spec.resume_timeout,
            "suspend_timeout": spec.suspend_timeout,
            "reconcile_interval": 2.0,
            "capacity_cooldown": 20.0,
            "quota_cooldown": 60.0,
            "max_cooldown": 120.0,
            "orphan_timeout": 20.0,
        },
        "checkpoint": {"expected_duration": 10.0, "notices": {"poll_interval": 1.0}},
        "clouds": [_onprem(root), _aws()],
        "pools": _pools(spec),
    }


def joining(spec: SandboxSpec, ports: Ports) -> dict[str, Any]:
    """Return the section ``join`` for virtual machines, with the head's address and munge key."""
    etc = spec.dir / "etc"
    return {
        "head": f"{VIRTUAL_HEAD}:{ports.slurmctld}",
        "heartbeat_timeout": spec.dead_man or spec.resume_timeout + 60.0,
        "ssh": {"key": f"{etc}/login", "munge_key": f"{etc}/login-munge.key", "user": LOGIN},
    }


def machine_part(spec: SandboxSpec) -> str:
    """Return the user data of virtual machines. It makes the directories of this host's slurm.conf,
    which do not exist on a virtual machine.
    """
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
    """Return slurm-elastic.yaml as a mapping. Missing endpoints and ports of nodes are filled
    in.
    """
    base = default_elastic(spec)
    if spec.image:
        base["join"] = joining(spec, ports)
    config = merged(base, spec)
    for cloud in config["clouds"]:
        if cloud["provider"] == "aws":
            cloud.setdefault("endpoint", f"http://127.0.0.1:{ports.ec2}")
            if spec.image:
                cloud.setdefault("user_data", f"{spec.dir}/etc/machine-part")
        if cloud["provider"] == "local":
            cloud.setdefault("socket", f"{spec.dir}/run/{cloud['name']}.sock")
        if cloud["provider"] == "opennebula":
            cloud.setdefault("endpoint", f"http://127.0.0.1:{ports.one}/RPC2")
            cloud["auth_file"] = f"{spec.dir}/one/one_auth"
    port = ports.nodes + spec.static_nodes
    for pool in config["pools"]:
        pool.setdefault("slurmd_port", port)
        port += len(expand(pool["nodes"]))
    return config


def merged(base: Mapping[str, Any], spec: SandboxSpec) -> dict[str, Any]:
    """Return ``base`` with ``spec.elastic`` merged into it, without clouds and pools in
    ``spec.drop``.
    """
    config: dict[str, Any] = _merge_values(base, spec.elastic)
    dropped = {*spec.drop}
    config["clouds"] = [c for c in config["clouds"] if c["name"] not in dropped]
    config["pools"] = [p for p in config["pools"] if dropped.isdisjoint((p["name"], p["cloud"]))]
    return config


def _merge_values(base: Any, top: Any) -> Any:  # noqa: ANN401 - YAML values
    if isinstance(base, Mapping) and isinstance(top, Mapping):
        both = {k: _merge_values(base[k], top[k]) for k in base.keys() & top.keys()}
        return deepcopy(dict(base)) | deepcopy(dict(top)) | both
    if _has_names(base) and _has_names(top):
        return _merge_by_name(base, top)
    return deepcopy(top)


def _merge_by_name(
    base: Sequence[Mapping[str, Any]], top: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    changes = {item["name"]: item for item in top}
    base_names = {item["name"] for item in base}
    merged_items = [_merge_values(item, changes.get(item["name"], {})) for item in base]
    return merged_items + [deepcopy(dict(item)) for item in top if item["name"] not in base_names]


def _has_names(value: Any) -> bool:  # noqa: ANN401 - YAML values
    return isinstance(value, list) and all(isinstance(v, Mapping) and "name" in v for v in value)
