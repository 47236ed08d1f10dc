"""A drawn site on real daemons: munged, slurmctld, a slurmd for each machine, and both services."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from slurm_elastic.base.hostlist import expand
from slurm_elastic.base.units import parse_duration
from slurm_elastic.config import Config, Timings, configfile
from slurm_elastic.sandbox import build
from slurm_elastic.sandbox.cluster import Sandbox
from slurm_elastic.sandbox.daemons import SLURMCTLD
from slurm_elastic.sandbox.layout import Saved
from slurm_elastic.sandbox.spec import SandboxSpec, ports_from
from slurm_elastic.slurm.conf import install
from tests.chaos.drawn_site import drawn_document
from tests.drawn.site_document import objects, read_values

DIR = Path("/tmp/site")
DEVICES = DIR / "dev"
GROUPS = ("physics", "biology")
"""All users of the drawn jobs are in both."""
FIRST_PORT = 7000
LONGEST = {
    "suspend_time": 6.0, "suspend_timeout": 4.0, "resume_timeout": 25.0, "orphan_timeout": 6.0,
    "reconcile_interval": 2.0, "poll_interval": 2.0, "max_poll_interval": 2.0,
    "capacity_cooldown": 5.0, "quota_cooldown": 6.0, "max_cooldown": 10.0, "boot_cooldown": 10.0,
    "expected_duration": 2.0,
}  # fmt: skip
"""Seconds: drawn times are at most this, so that a day's work takes a minute."""
CALM = {
    "suspend_time": 3.0, "suspend_timeout": 3.0, "resume_timeout": 25.0, "orphan_timeout": 6.0,
    "reconcile_interval": 1.0, "capacity_cooldown": 3.0, "quota_cooldown": 3.0, "max_cooldown": 5.0,
    "boot_cooldown": 5.0,
}  # fmt: skip
"""The times of the site once nothing new comes."""
SLURM_CONF = (
    "SlurmdTimeout=15", "MessageTimeout=30", "BatchStartTimeout=30",
    "SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,sched_interval=1,bf_interval=1",
    "SlurmctldDebug=debug", "DefMemPerCPU=1",
)  # fmt: skip


def document(seed: int) -> dict[str, Any]:
    """The drawn file, with short times and the places of this site."""
    drawn = drawn_document(seed)
    for _, here in objects(drawn):
        for name in here.keys() & LONGEST.keys():
            here[name] = _at_most(here[name], LONGEST[name])
    for of, here in objects(drawn):
        if of == "Who":
            _allow_groups(here)
    drawn["timings"] = {**LONGEST_TIMINGS, **drawn.get("timings", {})}
    policies = drawn.setdefault("policies", {})
    policies["poll_interval"] = policies.get("poll_interval", LONGEST["poll_interval"])
    drawn["state_dir"] = str(DIR / "state")
    drawn["slurm"] = {
        **drawn.get("slurm", {}), "conf": str(DIR / "etc" / "slurm.conf"),
        "programs_dir": str(DIR / "programs"),
    }  # fmt: skip
    drawn["users"] = {**drawn.get("users", {}), "socket": str(DIR / "door" / "read.sock")}
    port = FIRST_PORT
    for pool in drawn["pools"]:
        pool["slurmd_port"] = port
        if pool.get("gres"):
            pool["devices"] = {gres: [_device(gres, n)] for gres, n in pool["gres"].items()}
        port += len(expand(pool["nodes"]))
    return drawn


def _allow_groups(who: dict[str, Any]) -> None:
    """Slurm without a database knows neither accounts nor qualities of service: groups stand for them.
    The site has no partition of its own.
    """
    who.pop("partitions", None)
    names = {*who.pop("accounts", ()), *who.pop("groups", ()), *(who.pop("qos", None) or ())}
    if names:
        who["groups"] = sorted(names & set(GROUPS)) or [GROUPS[0]]


def _device(gres: str, count: int) -> str:
    """Device files by that name: see ``DrawnSite.begin``."""
    return f"{DEVICES}/{gres.replace(':', '-')}[0-{count - 1}]"


LONGEST_TIMINGS = {name: value for name, value in LONGEST.items() if name in CALM}


def _at_most(value: Any, most: float) -> Any:
    try:
        seconds = float(value) if isinstance(value, int | float) else parse_duration(str(value))
    except ValueError:
        return value
    return min(seconds, most)


def config_of(seed: int) -> Config:
    return read_values(document(seed))


def _gres_types(config: Config) -> Iterator[str]:
    if kinds := sorted({gres.partition(":")[0] for pool in config.pools for gres in pool.gres}):
        yield f"GresTypes={','.join(kinds)}"


class DrawnSite(Sandbox):
    """A sandbox with the drawn clouds alone. Its namespaces end all that it starts."""

    def __init__(self, config: Config) -> None:
        nothing = ("onprem", "aws", "op", "pub")
        spec = SandboxSpec(
            dir=DIR, static_nodes=0, bare=True, drop=nothing,
            slurm_conf=(*SLURM_CONF, f"ClusterName={config.cluster.name}", *_gres_types(config)),
        )  # fmt: skip
        super().__init__(spec)
        self.config = config

    def begin(self) -> None:
        layout = self.layout
        layout.dir.mkdir(mode=0o755)
        ports = ports_from(6800)
        layout.save(Saved(spec=self.spec, ports=ports))
        build.make_directories(layout)
        build.write_files(self.spec, ports, layout)
        self._make_devices()
        self._daemons.munged()
        self._install()
        self._daemons.slurmctld()

    def _make_devices(self) -> None:
        """slurmd takes nothing but devices; these are /dev/null by other names."""
        DEVICES.mkdir()
        for pool in self.config.pools:
            for gres, count in pool.gres.items():
                stem = _device(gres, count).partition("[")[0]
                for path in (Path(f"{stem}{n}") for n in range(count)):
                    if not path.exists():
                        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))

    def _install(self) -> None:
        text = configfile.dump(self.config)
        self.layout.config.write_text(text)
        install.install(self.config, self.layout.config, verify=False)

    def configure(self, config: Config) -> None:
        """As an admin does: another file, ``conf install``, and slurmctld reads its own again."""
        self.config = config
        self._install()
        self.slurmctld_stop()
        self.slurmctld_start()

    def reload(self, config: Config) -> None:
        """Another file, of which slurm.conf needs nothing."""
        self.config = config
        self.layout.config.write_text(configfile.dump(config))

    @property
    def slurmctld_pid(self) -> int:
        process = self.processes.get(SLURMCTLD)
        assert process is not None
        return process.pid

    def environment(self) -> Mapping[str, str]:
        return self.layout.daemon_env()


def calm_timings() -> Timings:
    return Timings(**CALM)  # type: ignore[arg-type]


def saved(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=1))
