"""The Docker engine for tests: started by the first who needs it, stopped by the last.

Test processes side by side, also those of other clones on this machine, share one engine. Each holds
a shared lock for as long as it uses it; who can have the lock alone afterwards is the last one. A
process that is killed loses its lock, so nothing has to be tidied up after it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    import docker

REPO = Path(__file__).resolve().parents[3]
SCRIPT = str(Path(__file__).parent / "engine")
LOCKS = Path("/var/cache/slurm-elastic")
SETUP_LIMIT = 1500.0
"""Seconds for packages, debootstrap and the building of an image, the first time."""


class NoEngine(Exception):  # noqa: N818 - read as a word
    """This machine cannot run one; the text says why."""


@dataclass
class Engine:
    """A running engine and the images that were asked for."""

    socket: str
    _images: dict[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"unix://{self.socket}"

    def client(self, timeout: float = 60.0) -> docker.DockerClient:
        """A client of the SDK; close it."""
        import docker

        return docker.DockerClient(base_url=self.url, version="auto", timeout=int(timeout))

    @contextlib.contextmanager
    def alone(self, name: str) -> Iterator[None]:
        """For what has a fixed name in the engine: one at a time on this machine."""
        with _locked(f"docker-{name}.lock"):
            yield

    def image(self, release: str) -> str:
        """The image of a Slurm host of that Debian release, built if it is not there yet."""
        if release not in self._images:
            with _locked("docker-build.lock"):
                self._images[release] = _run(
                    [str(REPO / "containers" / "build"), release], DOCKER_HOST=self.url
                )
        return self._images[release]

    def machine(self, base: str) -> str:
        """The image of a cloud's machine on top of that of a Slurm host."""
        return self.on_top(base, "cloud-init", Path(__file__).parent / "machine")

    def on_top(self, base: str, what: str, recipe: Path, **arguments: str) -> str:
        """An image on top of that of a Slurm host, by the Dockerfile in a directory."""
        name = f"{base}-{what}"
        if name not in self._images:
            words = ["docker", "build", "--network", "host", "--build-arg", f"BASE={base}"]
            for key, value in arguments.items():
                words += ["--build-arg", f"{key}={value}"]
            words += ["-t", name, str(recipe)]
            with _locked("docker-build.lock"):
                _run(words, DOCKER_HOST=self.url, DOCKER_BUILDKIT="0")
            self._images[name] = name
        return self._images[name]


@contextlib.contextmanager
def running_engine() -> Iterator[Engine]:
    """The engine, for as long as it is used; NoEngine where there can be none."""
    if os.getuid() != 0:
        raise NoEngine("a Docker engine is started, which needs root")
    LOCKS.mkdir(parents=True, exist_ok=True)
    with open(LOCKS / "docker-users.lock", "w") as users:
        with _locked("docker-start.lock"):
            fcntl.flock(users, fcntl.LOCK_SH)
            socket = _run([SCRIPT, "up"])
        try:
            yield Engine(socket=socket)
        finally:
            with _locked("docker-start.lock"):
                if _alone(users):
                    _run([SCRIPT, "down"])


def free_range() -> int:
    """The second number of a network 10.x.0.0/16 that no engine of this machine uses."""
    return int(_run([SCRIPT, "range"]))


def _alone(users: IO[str]) -> bool:
    fcntl.flock(users, fcntl.LOCK_UN)
    try:
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextlib.contextmanager
def _locked(name: str) -> Iterator[None]:
    with open(LOCKS / name, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _run(command: list[str], **environment: str) -> str:
    """The last line of a script's output; NoEngine with its complaint."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SETUP_LIMIT,
            check=False,
            env=os.environ | environment,
        )
    except subprocess.TimeoutExpired:
        raise NoEngine(f"{command[0]} took longer than {SETUP_LIMIT:.0f} s") from None
    if done.returncode != 0:
        raise NoEngine(" / ".join(done.stderr.strip().splitlines()[-2:]) or "no message")
    return (done.stdout.strip().splitlines() or [""])[-1]
