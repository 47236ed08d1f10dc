"""A second Docker engine beside the one of engine.py, which listens on TCP with TLS as well.

Its own are data root (the image stays there for the next time), sockets, containerd, networks and
certificates. Containers live on while it is stopped, unless it is started without ``live_restore``:
then it comes back as after the restart of its host. One at a time on a machine.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from patience import eventually, patience
from ports import free_ports

from slurm_elastic.providers.docker.settings import DockerHost

from .certificates import Authority
from .engine import LOCKS, Engine, NoEngine, free_range

DATA = LOCKS / "docker-far"
RUN = Path("/run/slurm-elastic-test-far")
PATIENCE = 120.0
STARTS = 3
LOOPBACK = "127.0.0.1"


class FarEngine(Engine):
    """``engine`` is its neighbour, from which it gets images."""

    def __init__(self, directory: Path) -> None:
        super().__init__(socket=str(RUN / "docker.sock"))
        self.authority = Authority(directory / "authority")
        self.cert_file, self.key_file = self.authority.client()
        (self.port,) = free_ports(1)
        self._dockerd: subprocess.Popen[bytes] | None = None

    @property
    def up(self) -> bool:
        """Whether its dockerd was started, and not stopped since."""
        return self._dockerd is not None

    def host(self, address: str = LOOPBACK, cpus: int = 2) -> DockerHost:
        """As a site's configuration has it."""
        return DockerHost(
            url=f"tcp://{address}:{self.port}",
            ca_file=self.authority.ca_file,
            cert_file=self.cert_file,
            key_file=self.key_file,
            cpus=cpus,
            memory=10**6,
        )

    def start(self, *more: str, live_restore: bool = True) -> None:
        """Start dockerd, on these addresses besides loopback; it answers on its socket then."""
        addresses = (LOOPBACK, *more)
        # Not the settings of the machine's own engine.
        settings = RUN / "daemon.json"
        if not settings.exists():
            pools = [{"base": f"10.{free_range()}.0.0/16", "size": 24}]
            settings.write_text(json.dumps({"default-address-pools": pools}))
        words = _command(settings, self.url, self._tls(addresses), live_restore=live_restore)
        # It gives its containerd 15 s: a machine that stands still for longer needs another start.
        for _ in range(STARTS):
            if self._began(words):
                return
            self.stop()
        raise NoEngine(f"a second dockerd does not run here: {_complaint()}")

    def _began(self, words: Sequence[str]) -> bool:
        """Start it by these words; whether it answers."""
        with open(RUN / "log", "ab") as log:
            self._dockerd = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        deadline = time.monotonic() + patience(PATIENCE)
        while not self._answers():
            if self._dockerd.poll() is not None or time.monotonic() > deadline:
                return False
            time.sleep(0.1)
        return True

    def stop(self) -> None:
        """End dockerd as an init system does; its containers go on."""
        if self._dockerd is None:
            return
        self.wake()
        self._dockerd.terminate()
        try:
            self._dockerd.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._dockerd.kill()
            self._dockerd.wait(PATIENCE)
        self._dockerd = None

    def close(self) -> None:
        """End its containers, whatever state it is in, and it."""
        with contextlib.ExitStack() as rest:
            rest.callback(_tidy)
            rest.callback(self.stop)
            if not self.up:
                self.start()
            self.wake()
            self.clear()

    def freeze(self) -> None:
        """It listens, and says nothing more. The signal reaches its threads one after the other."""
        assert self._dockerd is not None
        self._dockerd.send_signal(signal.SIGSTOP)
        tasks = Path(f"/proc/{self._dockerd.pid}/task")
        eventually(lambda: all(_is_stopped(task) for task in tasks.iterdir()))

    def wake(self) -> None:
        """It goes on, if it was frozen."""
        assert self._dockerd is not None
        self._dockerd.send_signal(signal.SIGCONT)

    def clear(self) -> None:
        """Remove all containers and networks: there is nobody else who has some here."""
        with contextlib.closing(self.client(PATIENCE)) as client:
            for container in client.containers.list(all=True, ignore_removed=True):
                container.remove(force=True, v=True)
            client.networks.prune()

    def take(self, engine: Engine, image: str) -> None:
        """Copy an image from another engine, unless it is here already."""
        with (
            contextlib.closing(engine.client(PATIENCE)) as theirs,
            contextlib.closing(self.client(PATIENCE)) as ours,
        ):
            wanted = theirs.images.get(image)
            if any(wanted.id == one.id for one in ours.images.list(name=image)):
                return
            with tempfile.TemporaryFile(dir=DATA) as file:
                for chunk in wanted.save(named=image):
                    file.write(chunk)
                file.seek(0)
                ours.images.load(file)
            ours.images.prune()

    def _tls(self, addresses: Sequence[str]) -> Sequence[str]:
        certificate, key = self.authority.server(addresses)
        files = ("--tlscacert", self.authority.ca_file, "--tlscert", certificate, "--tlskey", key)
        hosts = [word for one in addresses for word in ("--host", f"tcp://{one}:{self.port}")]
        return ("--tlsverify", *files, *hosts)

    def _answers(self) -> bool:
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(5.0)
            try:
                probe.connect(self.socket)
                probe.sendall(b"GET /_ping HTTP/1.0\r\n\r\n")
                return b" 200 " in probe.recv(100)
            except OSError:
                return False


@contextlib.contextmanager
def running_far_engine(engine: Engine, image: str) -> Iterator[FarEngine]:
    """It runs and has the image; NoEngine where this machine cannot run two."""
    with (
        engine.alone("far"),
        tempfile.TemporaryDirectory(prefix="se-far-", dir="/tmp") as directory,
    ):
        _end_leftover()
        for path in (DATA, RUN):
            path.mkdir(mode=0o711, parents=True, exist_ok=True)
        for name in ("daemon.json", "log"):
            (RUN / name).unlink(missing_ok=True)
        far = FarEngine(Path(directory))
        try:
            far.start()
            far.clear()
            far.take(engine, image)
            yield far
        finally:
            far.close()


def _command(settings: Path, url: str, tls: Sequence[str], *, live_restore: bool) -> Sequence[str]:
    return (
        "dockerd", "--config-file", str(settings), "--data-root", str(DATA), "--exec-root", str(RUN / "exec"),
        "--pidfile", str(RUN / "pid"), "--host", url, *tls, f"--live-restore={str(live_restore).lower()}",
        "--bridge=none", "--iptables=false", "--ip6tables=false", "--ip-forward=false", "--ip-masq=false",
    )  # fmt: skip


def _complaint() -> str:
    lines = (RUN / "log").read_text(errors="replace").splitlines()
    return next((line for line in reversed(lines) if "level=info" not in line), "no message")


def _end_leftover() -> None:
    """Stop the engine of a run that was killed; we hold the lock, so it is nobody's."""
    try:
        pid = int((RUN / "pid").read_text())
        if Path(os.readlink(f"/proc/{pid}/exe")).name != "dockerd":
            return
        os.kill(pid, signal.SIGCONT)
        os.kill(pid, signal.SIGTERM)
    except (OSError, ValueError):
        return
    deadline = time.monotonic() + patience(PATIENCE)
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.1)


def _tidy() -> None:
    """Remove what it had in /run, but for its log; the mounts that dockerd leaves first."""
    for mount in RUN.glob("exec/netns/*"):
        subprocess.run(["umount", str(mount)], capture_output=True, check=False)
    for name in ("pid", "docker.sock", "daemon.json"):
        (RUN / name).unlink(missing_ok=True)
    rest = ("rm", "-rf", "--one-file-system", str(RUN / "exec"))
    subprocess.run(rest, capture_output=True, check=False)


def _is_stopped(task: Path) -> bool:
    """Whether a thread stands still, or is gone. proc_pid_stat(5): its state follows its name, which
    is in brackets.
    """
    try:
        text = (task / "stat").read_text(encoding="ascii")
    except (FileNotFoundError, ProcessLookupError):
        return True
    return text.rpartition(") ")[2][0] in "TZX"
