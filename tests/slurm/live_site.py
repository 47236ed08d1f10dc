"""One of the five sites on real daemons: own munged, slurmctld and one slurmd, private ports.

Its slurm.conf is adapted line by line (places, ports, authentication; slurmdbd is replaced by
accounting_storage/none, since none runs here); nodes, partitions, options and the file's form
(Includes, CRLF, missing final newline) stay the site's. Only the first node is a real slurmd.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from patience import patience, pause

from slurm_elastic.config import Config, configfile
from slurm_elastic.slurm.client import siteconf
from slurm_elastic.slurm.conf import dryrun
from tests.ports import free_ports
from tests.slurm import site_cases

SETTLED = 90.0
HOST = socket.gethostname().split(".")[0]
_DROPPED = re.compile(
    r"(slurmctld|slurmd)(host|port|pidfile|logfile|spooldir)|control(machine|addr)|crypto.*|auth.*"
    r"|statesavelocation|proctracktype|taskplugin|mpidefault|accounting.*|jobacct.*|healthcheck.*"
    r"|prolog|epilog|(prolog|epilog)slurmctld|returntoservice|selecttypeparameters"
)
POWER = ("ResumeTimeout", "SuspendTimeout", "SuspendTime", "PowerDownOnIdle")
"""From 24.11 on, scontrol shows these of each partition once any SuspendProgram is set: as GLOBAL."""
OPTIONS = """\
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
AuthType=auth/munge
AuthInfo=socket={root}/munge/socket
StateSaveLocation={root}/ctld
SlurmctldPidFile={root}/ctld/pid
SlurmctldLogFile={root}/ctld/log
SlurmdSpoolDir={root}/slurmd
SlurmdPidFile={root}/slurmd.pid
SlurmdLogFile={root}/slurmd.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
ReturnToService=2
MailProg=/bin/true
MessageTimeout=60
{hooks}
"""
RESTART = """\
#!/bin/sh
# What `systemctl restart slurmctld` is on a real site.
pid=$(cat {root}/ctld/pid)
kill "$pid"
while kill -0 "$pid" 2>/dev/null; do sleep 0.1; done
exec /usr/sbin/slurmctld -f {root}/etc/slurm.conf
"""


def wait_for(what: str, probe: Callable[[], object], seconds: float = SETTLED) -> None:
    began = time.monotonic()
    deadline = began + patience(seconds)
    while not probe():
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what}"
        pause(began, 0.1)


class LiveSite:
    """The site ``name`` in ``root`` (world-readable)."""

    def __init__(self, name: str, root: Path, *, extra: str = "") -> None:
        self.name, self.root = name, root
        self.conf = site_cases.copy(name, root)
        self._children: list[subprocess.Popen[bytes]] = []
        slurm = pwd.getpwnam("slurm")
        for directory in ("ctld", "munge", "slurmd"):
            (root / directory).mkdir(mode=0o755)
        os.chown(root / "ctld", slurm.pw_uid, slurm.pw_gid)
        if name == "topology":
            site_cases.add_topology(self.conf)
        if name == "private":
            (root / "etc" / "gres.conf").write_text("NodeName=mri[1-2] Name=gpu File=/dev/null\n")
        self._hooks()
        self._adapt(extra)
        self.site = siteconf.read(self.conf)
        self.node = self.site.nodes[0].names[0]
        (root / "restart").write_text(RESTART.format(root=root))
        (root / "restart").chmod(0o755)

    @property
    def restart_command(self) -> str:
        return f"{self.root}/restart"

    def config(self) -> Config:
        """The two clouds, for a group: without slurmdbd no account or QOS is known."""
        text = (site_cases.SITES / "slurm-elastic.yaml").read_text()
        text = text.replace("CLUSTER", site_cases.CLUSTERS[self.name])
        text = text.replace("CONF", f"{self.conf}\n  programs_dir: {self.root}/libexec")
        text = (
            text.replace("accounts: [burst], qos: [cloud]", "groups: [root]")
            + f"state_dir: {self.root}/state\n"
        )
        self.config_path.parent.mkdir(exist_ok=True)
        self.config_path.write_text(text)
        return configfile.load(self.config_path)

    @property
    def config_path(self) -> Path:
        return self.root / "elastic" / "slurm-elastic.yaml"

    def _hooks(self) -> None:
        """The own-lua site has a prolog and epilog of slurmctld that leave a trace."""
        for kind in ("prolog", "epilog"):
            path = self.root / kind
            path.write_text(f"#!/bin/sh\necho $SLURM_JOB_ID >>{self.root}/ctld/{kind}.jobs\n")
            path.chmod(0o755)

    def _adapt(self, extra: str) -> None:
        hooks = extra
        if self.name == "own-lua":
            for kind in ("Prolog", "Epilog"):
                hooks += f"\n{kind}Slurmctld={self.root}/{kind.lower()}"
        options = OPTIONS.format(host=HOST, root=self.root, port=free_ports(1)[0], hooks=hooks)
        for path in self.conf.parent.glob("*.conf"):
            if path.name not in ("topology.conf", "gres.conf"):
                self._adapt_file(path, options if path == self.conf else "")

    def _adapt_file(self, path: Path, options: str) -> None:
        text = path.read_bytes().decode()
        newline = "\r\n" if "\r\n" in text else "\n"
        lines = [f"# {path.name}, adapted", *options.splitlines()]
        lines += [self._adapt_line(one) for _, one in siteconf.logical_lines(text)]
        ending = newline if text.endswith("\n") else ""
        path.write_bytes((newline.join(lines) + ending).encode())

    def _adapt_line(self, text: str) -> str:
        if text.lower().startswith("include"):
            return text
        entries = siteconf.pairs(text, "", 0)
        if entries[0].key == "nodename" and entries[0].value != "DEFAULT":
            kept = [f"{e.name}={e.value}" for e in entries if e.key != "nodeaddr"]
            ports = free_ports(len(siteconf.names(entries[0])))
            port = str(ports[0]) if len(ports) == 1 else f"[{','.join(map(str, ports))}]"
            return " ".join((*kept, f"NodeHostname={HOST} NodeAddr=127.0.0.1 Port={port}"))
        if entries[0].key in siteconf.RECORDS:
            # Without slurmdbd no account is known, and AllowAccounts would refuse everybody.
            return re.sub(r"AllowAccounts=\S+", "AllowGroups=root", text).replace("#", "\\#")
        return " ".join(f"{e.name}={e.value}" for e in entries if not _DROPPED.fullmatch(e.key))

    def start(self) -> None:
        """munged, slurmctld (as a daemon) and the one slurmd; returns when its node is idle."""
        munge = self.root / "munge"
        (munge / "key").write_bytes(os.urandom(128))
        (munge / "key").chmod(0o400)
        self._child(
            "/usr/sbin/munged",
            "--foreground",
            "--force",
            *(f"--{o}-file={munge}/{o}" for o in ("key", "pid", "log", "seed")),
            f"--socket={munge}/socket",
        )
        wait_for("munged's socket", (munge / "socket").exists)
        self.run("/usr/sbin/slurmctld", "-f", str(self.conf))
        wait_for(
            "slurmctld to answer", lambda: " is UP" in self.run("scontrol", "ping", check=False)
        )
        self._child("/usr/sbin/slurmd", "-D", "-N", self.node, "-f", str(self.conf))
        wait_for("the node to be idle", lambda: self.state(self.node) == "idle")

    def restart(self) -> None:
        """Restart slurmctld as an admin does by hand."""
        self.run(self.restart_command)
        wait_for(
            "slurmctld to answer", lambda: " is UP" in self.run("scontrol", "ping", check=False)
        )

    def _child(self, *command: str) -> None:
        with (self.root / "out").open("ab") as out:
            self._children.append(
                subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=self.env, cwd="/"
                )
            )

    @property
    def env(self) -> dict[str, str]:
        path = "/usr/sbin:/usr/bin:/sbin:/bin"
        return {"PATH": path, "SLURM_CONF": str(self.conf), "LC_ALL": "C.UTF-8"}

    def run(self, *command: str, check: bool = True) -> str:
        done = subprocess.run(
            command,
            env=self.env,
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SETTLED,
        )
        assert not check or done.returncode == 0, f"{command}: {done.stderr}{done.stdout}"
        return done.stdout + (done.stderr if done.returncode else "")

    def sbatch(self, *options: str) -> int:
        out = self.run(
            "sbatch", "--parsable", "-o", "/dev/null", "-D", "/", *options, "--wrap", "sleep 3600"
        )
        return int(out.split(";")[0])

    def state(self, node: str) -> str:
        return self.run("sinfo", "-h", "-a", "-n", node, "-o", "%T", check=False).split("\n")[0]

    def job(self, job: int) -> dict[str, str]:
        text = self.run("scontrol", "show", "job", str(job), check=False)
        return dict(re.findall(r"(\S+?)=(\S*)", text))

    def view(self) -> dict[str, dict[str, str]]:
        """Slurm's records of the site's own nodes and partitions."""
        nodes = dryrun.records(self.run("scontrol", "-a", "-o", "show", "nodes"), "NodeName")
        parts = dryrun.records(
            self.run("scontrol", "-a", "-o", "show", "partitions"), "PartitionName"
        )
        for fields in parts.values():
            for name in POWER:
                fields.pop(name, None)
        own = {name for record in self.site.partitions for name in record.names}
        view = {f"node {n}": nodes[n] for n in self.site.node_names if n in nodes}
        return view | {f"partition {n}": parts[n] for n in own if n in parts}

    def stop(self) -> None:
        """End what was started, by its pid."""
        for job in self.run("squeue", "-h", "-o", "%A", check=False).split():
            if job.isdigit():
                self.run("scancel", job, check=False)
        with contextlib.suppress(AssertionError):
            wait_for(
                "jobs to end",
                lambda: not self.run("squeue", "-h", "-w", self.node, check=False).strip(),
                30,
            )
        with contextlib.suppress(FileNotFoundError, ProcessLookupError, ValueError):
            pid = int((self.root / "ctld" / "pid").read_text())
            os.kill(pid, signal.SIGTERM)
            wait_for("slurmctld to end", lambda: not _alive(pid))
        for child in reversed(self._children):
            child.terminate()
            child.wait(SETTLED)


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"
