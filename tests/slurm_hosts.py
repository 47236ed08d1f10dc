"""A cluster of real Slurm daemons on hosts of their own: network, UTS, IPC, mount and pid namespaces on
one switch, with a /tmp, /dev/shm and /run each. The head is one of them. Needs root and iproute2.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from needs import missing
from patience import eventually, patience

from slurm_elastic.machine.ckptroot.bundle import build
from slurm_elastic.slurm.hooks.launcher import PROGRAM, launchers

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ROOT = Path(__file__).parents[1]
SWITCH, HEAD, PORT = "switch", "head", 27017
HEAD_ADDRESS = "10.77.0.254"
USER, UID = "nobody", 65534
_START = """set -e
hostname {host}
mount -t tmpfs -o mode=1777 tmpfs /tmp
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
mount -t tmpfs -o mode=755 tmpfs /run
mount --bind {home}/hosts /etc/hosts
mount --bind {home}/sudoers.d /etc/sudoers.d
mount --bind {home}/sbin /usr/local/sbin
sleep 1000000 &
wait
"""
_SLURM_CONF = """\
ClusterName=t
SlurmctldHost=head({head})
SlurmctldPort={port}
SlurmdPort={slurmd_port}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={home}/run/munge.socket
StateSaveLocation={home}/state
SlurmdSpoolDir={home}/spool/%n
SlurmctldPidFile={home}/run/slurmctld.pid
SlurmdPidFile={home}/run/%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SchedulerParameters=requeue_setup_env_fail
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SlurmctldTimeout=60
SlurmdTimeout=20
KillWait=10
InactiveLimit=0
MailProg=/bin/true
SlurmdParameters=config_overrides
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE
"""


def why_not(*programs: str) -> str:
    """Why there can be no such hosts here; "" if there can."""
    if os.getuid() != 0:
        return "namespaces of hosts are root's"
    needed = ("ip", "nft", "sudo", "munged", "slurmctld", "slurmd", "sbatch", "scontrol", *programs)
    if reason := missing(*needed):
        return reason
    probe = ["unshare", "--net", "--mount", "--uts", "--ipc", "--pid", "--fork", "--mount-proc", "nft",
             "add", "table", "inet", "probe"]  # fmt: skip
    done = subprocess.run(probe, capture_output=True, text=True, check=False)
    return f"no namespaces here: {done.stderr.strip()}" if done.returncode else ""


def run(*command: str, check: bool = True, text: str | None = None) -> str:
    """Return the output of a command that must succeed."""
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=patience(120), input=text,
        env={"PATH": PATH}, stdin=None if text is not None else subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0 or not check, (command, done.stdout, done.stderr)
    return done.stdout


class Hosts:
    """A head and the nodes n1, n2, ... with CPUs each."""

    def __init__(self, count: int, dmtcp: Path, *, cpus: int = 4, conf: str = "") -> None:
        # Not in /tmp: each host has its own.
        self.home = Path(tempfile.mkdtemp(prefix="se-hosts-", dir="/var/tmp"))
        self.home.chmod(0o755)
        self.nodes = [f"n{number}" for number in range(1, count + 1)]
        self._hosts: dict[str, subprocess.Popen[bytes]] = {}
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        for name in ("state", "spool", "run", "log", "sudoers.d", "sbin", "shared"):
            (self.home / name).mkdir(mode=0o755)
        self.user = self.home / "user"
        self.user.mkdir()
        os.chown(self.user, UID, UID)
        text = _SLURM_CONF.format(home=self.home, head=HEAD_ADDRESS, port=PORT,
                                  slurmd_port=PORT + 1)  # fmt: skip
        for number, node in enumerate(self.nodes, 1):
            text += f"NodeName={node} NodeAddr=10.77.0.{number} CPUs={cpus} State=UNKNOWN\n"
        (self.home / "slurm.conf").write_text(text + conf)
        (self.home / "cgroup.conf").write_text("")
        lines = [f"10.77.0.{n} {node}" for n, node in enumerate(self.nodes, 1)]
        lines = ["127.0.0.1 localhost", f"{HEAD_ADDRESS} head", *lines]
        (self.home / "hosts").write_text("\n".join(lines) + "\n")
        self._install(dmtcp)

    def _install(self, dmtcp: Path) -> None:
        """The root part with its files, as its page says."""
        conf, key = self.home / "ckpt-root.conf", self.home / "ckpt.key"
        key.write_bytes(b"k" * 64)
        key.chmod(0o400)
        conf.write_text(f"directory = {self.home}/shared\ncluster = t\nkey = {key}\n"
                        f"slurm_user = root\ndmtcp = {dmtcp}\npoll = 0.1\n"
                        f"slurm_conf = {self.home}/slurm.conf\nhold = 300\n")  # fmt: skip
        program = self.home / "sbin" / Path(PROGRAM).name
        program.write_bytes(build(str(conf)))
        program.chmod(0o755)
        sudoers = self.home / "sudoers.d" / "slurm-elastic"
        sudoers.write_bytes((ROOT / "etc" / "sudoers.d-slurm-elastic").read_bytes())
        sudoers.chmod(0o440)

    def __enter__(self) -> Hosts:
        try:
            self._up()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _up(self) -> None:
        for host in (SWITCH, HEAD, *self.nodes):
            run("ip", "netns", "add", self.name(host))
            self.ip(host, "link", "set", "lo", "up")
        self.ip(SWITCH, "link", "add", "br0", "type", "bridge")
        self.ip(SWITCH, "link", "set", "br0", "up")
        for number, host in enumerate((*self.nodes, HEAD), 1):
            address = HEAD_ADDRESS if host == HEAD else f"10.77.0.{number}"
            self.ip(SWITCH, "link", "add", f"v{host}", "type", "veth", "peer", "name", "eth0",
                    "netns", self.name(host))  # fmt: skip
            self.ip(SWITCH, "link", "set", f"v{host}", "master", "br0", "up")
            self.ip(host, "address", "add", f"{address}/24", "dev", "eth0")
            self.ip(host, "link", "set", "eth0", "up")
        for host in (HEAD, *self.nodes):
            self.boot(host)
        key = self.home / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        place = self.home / "run"
        self._start("munged", HEAD, "munged", "--foreground", "--force",
                    f"--socket={place}/munge.socket", f"--key-file={key}",
                    f"--pid-file={place}/munged.pid", f"--seed-file={place}/munged.seed",
                    f"--log-file={self.home}/log/munged.log")  # fmt: skip
        assert eventually((place / "munge.socket").exists)
        self._start("slurmctld", HEAD, "slurmctld", "-D", "-f", f"{self.home}/slurm.conf")
        for node in self.nodes:
            self.slurmd(node)
        assert eventually(lambda: self.idle() == len(self.nodes)), run(*self.on(HEAD), "sinfo")

    def boot(self, host: str) -> None:
        """Switch a host on."""
        command = ["nsenter", f"--net=/run/netns/{self.name(host)}", "unshare", "--mount", "--uts",
                   "--ipc", "--pid", "--fork", "--mount-proc", "--kill-child", "sh", "-c",
                   _START.format(host=host, home=self.home)]  # fmt: skip
        with (self.home / "log" / f"{host}.boot").open("ab") as log:
            self._hosts[host] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={"PATH": PATH},
                start_new_session=True,
            )  # fmt: skip
        assert eventually(lambda: self._first(host) > 0)
        assert eventually(
            lambda: run(*self.on(host), "cat", "/proc/mounts", check=False).count("/usr/local/sbin")
        ), (self.home / "log" / f"{host}.boot").read_text()

    def slurmd(self, node: str) -> None:
        """Start the node's slurmd."""
        (self.home / "spool" / node).mkdir(exist_ok=True)
        conf = f"{self.home}/slurm.conf"
        self._start(f"slurmd-{node}", node, "slurmd", "-D", "-N", node, "-f", conf)

    def cut(self, node: str) -> None:
        """Cut a host's power: all of its processes are gone at once, and nobody is told."""
        self.ip(SWITCH, "link", "set", f"v{node}", "down")
        process = self._hosts.pop(node)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        self._daemons.pop(f"slurmd-{node}").wait()

    def again(self, node: str) -> None:
        """The host comes back, with nothing of what it had."""
        self.ip(SWITCH, "link", "set", f"v{node}", "up")
        self.boot(node)
        self.slurmd(node)

    def _first(self, host: str) -> int:
        """The first process of a host, as we number it; 0 if it has none."""
        pid = self._hosts[host].pid
        with contextlib.suppress(OSError, IndexError):
            return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])
        return 0

    def on(self, host: str) -> list[str]:
        """The words before a command that is to run on a host."""
        return ["nsenter", "-t", str(self._first(host)), "-n", "-m", "-u", "-i", "-p", "env",
                f"SLURM_CONF={self.home}/slurm.conf", f"PATH={PATH}"]  # fmt: skip

    def name(self, host: str) -> str:
        """The name of a host's network namespace."""
        return f"seh{os.getpid()}-{host}"

    def ip(self, host: str, *words: str) -> str:
        """ip(8) on a host."""
        return run("ip", "-n", self.name(host), *words)

    def _start(self, name: str, host: str, *command: str) -> None:
        with (self.home / "log" / f"{name}.out").open("ab") as log:
            self._daemons[name] = subprocess.Popen(
                [*self.on(host), *command], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True, env={"PATH": PATH},
            )  # fmt: skip

    def idle(self) -> int:
        """How many nodes are idle."""
        shown = run(*self.on(HEAD), "sinfo", "-h", "-N", "-o", "%T", check=False)
        return shown.split().count("idle")

    def submit(self, script: str, *options: str, method: str = "dmtcp") -> int:
        """Submit the script behind its launcher; return the job's number."""
        path = self.home / "job.sh"
        path.write_text((launchers("/nowhere")[method] if method else "") + script)
        path.chmod(0o755)
        output = run(
            *self.on(HEAD), "setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups",
            "sbatch", "--parsable", "--requeue", f"--chdir={self.user}", "--output=out-%j",
            *options, str(path),
        )  # fmt: skip
        return int(output)

    def job(self, number: int) -> Mapping[str, str]:
        """What Slurm says of a job."""
        shown = run(*self.on(HEAD), "scontrol", "-o", "show", "job", str(number), check=False)
        return dict(word.split("=", 1) for word in shown.split() if "=" in word)

    def scontrol(self, *words: str) -> str:
        return run(*self.on(HEAD), "scontrol", *words)

    def wait_for(self, number: int, *states: str, within: float = 300.0) -> str:
        """Wait until the job is in one of the states; return it."""
        until, state = time.monotonic() + patience(within), ""
        while time.monotonic() < until:
            state = self.job(number).get("JobState", "")
            if state in states:
                return state
            time.sleep(0.3)
        raise AssertionError(f"job {number} is {state}, not {states}: {self.log(number)}")

    def log(self, number: int) -> str:
        """The output of the job, and what the root part says of it."""
        texts = [path.read_text() for path in self.user.glob(f"out-{number}")]
        status = self.home / "shared" / "t" / str(number) / "status.json"
        return "\n".join([*texts, status.read_text() if status.exists() else "no status"])

    def close(self) -> None:
        for process in (*reversed(self._daemons.values()), *self._hosts.values()):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        for process in (*self._daemons.values(), *self._hosts.values()):
            process.wait()
        for host in (SWITCH, HEAD, *self.nodes):
            run("ip", "netns", "del", self.name(host), check=False)
        shutil.rmtree(self.home, ignore_errors=True)


def compiled(source: str, compiler: str, program: Path) -> Sequence[str]:
    """Compile a program in C; return the words to start it."""
    code = program.with_suffix(".c")
    code.write_text(source)
    run(compiler, "-O1", "-o", str(program), str(code))
    return [str(program)]
