"""``slurm-elastic try`` in a sandbox, and machines that a test boots itself: a slurmd with a mistake."""

from __future__ import annotations

import io
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from patience import patience

from slurm_elastic.config.configfile import UUID_FILE
from slurm_elastic.policies.launch.trial import TrialStep
from slurm_elastic.sandbox.cluster import Sandbox

CLI = (sys.executable, "-P", "-m", "slurm_elastic.cli.main")
LIMIT = 400.0
NAMESPACES = ("unshare", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child")


def tried(site: Sandbox, *words: str, config: Path | None = None) -> tuple[int, str]:
    """Exit code and all that it said; ``config``: another one than that of the daemons."""
    file = ("--config", str(config or site.layout.config))
    done = site.run([*CLI, *file, "try", *words, "--yes"], check=False, timeout=LIMIT)
    return done.returncode, done.stdout + done.stderr


def agreed(site: Sandbox, line: str) -> tuple[int, str]:
    """A line typed at a terminal, whose question is answered by y; exit code and all that was seen there."""
    own, terminal = pty.openpty()
    path = os.pathsep.join([str(Path(sys.executable).parent), site.env()["PATH"]])
    with subprocess.Popen(
        ["bash", "-c", line], env=site.env() | {"PATH": path},
        stdin=terminal, stdout=terminal, stderr=terminal,
    ) as process:  # fmt: skip
        os.close(terminal)
        said = b""
        with os.fdopen(own, "r+b", buffering=0) as screen:
            while more := _seen(screen):
                said += more
                if said.endswith(b"[y/N] "):
                    screen.write(b"y\n")
    return process.returncode, said.decode().replace("\r\n", "\n")


def _seen(screen: io.FileIO) -> bytes:
    try:
        return screen.read(4096)
    except OSError:  # nobody has the terminal open any more
        return b""


def steps(said: str) -> list[str]:
    """The steps that it told, in their order."""
    known = {str(step) for step in TrialStep}
    words = [line.split() for line in said.splitlines()]
    return [w[1] for w in words if len(w) > 1 and w[0].endswith("s") and w[1] in known]


class Trying:
    """A command that runs; ``said`` is what was read of it so far."""

    def __init__(self, site: Sandbox, *words: str, config: Path | None = None) -> None:
        # A run of tests in the background of a shell hands an ignored SIGINT down to all of its
        # children; Ctrl-C is that of a terminal, where it is not.
        listening = ("env", "--default-signal=INT")
        file = ("--config", str(config or site.layout.config))
        self.process = subprocess.Popen(
            [*listening, *CLI, *file, "try", *words, "--yes"], text=True,
            env=site.layout.user_env(os.environ), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        self.said = ""

    def until(self, word: str) -> str:
        """Read on to the line with this word; that line."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said += line
            if word in line:
                return line
        raise AssertionError(f"{word!r} never came:\n{self.said}")

    def node(self) -> str:
        """The node that it asked for."""
        return self.until(" asked ").rpartition(": ")[2].strip()

    def machine(self) -> str:
        """The machine that its cloud has started."""
        found = re.search(r" the order: ([^,]+),", self.until(" launched "))
        assert found, self.said
        return found[1]

    def interrupt(self) -> None:
        """Ctrl-C."""
        self.process.send_signal(signal.SIGINT)

    def rest(self) -> int:
        """Read to the end; the exit code. Not by ``communicate``: that knows nothing of the lines
        that came together with the last one that was asked for.
        """
        assert self.process.stdout is not None
        with self.process.stdout as rest:
            self.said += rest.read()
        return self.process.wait(patience(60))


@contextmanager
def running(argv: Sequence[str], log: Path, **environment: str) -> Iterator[None]:
    """A daemon of the test's own, with all its children where it has namespaces of its own."""
    with log.open("wb") as file:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True,
            env=os.environ | environment, cwd=log.parent,
        )  # fmt: skip
    try:
        yield
    finally:
        os.killpg(process.pid, signal.SIGTERM if argv[0] == "munged" else signal.SIGKILL)
        process.wait(patience(60))


@contextmanager
def munged(directory: Path, key: bytes, **environment: str) -> Iterator[None]:
    """One with this key; its socket is ``directory``/socket."""
    directory.mkdir(mode=0o755)
    file = directory / "munge.key"
    file.write_bytes(key)
    file.chmod(0o400)
    argv = [
        "munged", "--foreground", "--force", f"--socket={directory}/socket", f"--key-file={file}",
        f"--pid-file={directory}/pid", f"--seed-file={directory}/seed",
        f"--log-file={directory}/log",
    ]  # fmt: skip
    with running(argv, directory / "out", **environment):
        yield


def conf_with(site: Sandbox, place: Path, changes: Mapping[str, str]) -> Path:
    """The site's slurm.conf with other words, and what it includes."""
    text = site.layout.slurm_conf.read_text()
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    for file in site.layout.slurm_conf.parent.iterdir():
        if file.suffix == ".conf":
            (place / file.name).write_bytes(file.read_bytes())
    conf = place / site.layout.slurm_conf.name
    conf.write_text(text)
    return conf


def config_with(site: Sandbox, place: Path, changes: Mapping[str, Any]) -> Path:
    """The configuration as ``try`` alone is to read it, with the cluster's UUID beside it."""
    config = place / site.layout.config.name
    config.write_text(yaml.safe_dump(yaml.safe_load(site.layout.config.read_text()) | changes))
    shutil.copy(site.layout.config.with_name(UUID_FILE), place)
    return config


def in_namespaces(script: str) -> list[str]:
    """A machine with mounts and processes of its own; all of it ends with the first process."""
    return [*NAMESPACES, "sh", "-c", f"set -e\n{script}"]


def no_namespaces() -> str:
    """Why there are none here; empty if there are."""
    done = subprocess.run(
        [*NAMESPACES, "mount", "-t", "tmpfs", "tmpfs", "/run"],
        capture_output=True, text=True, check=False, timeout=patience(60),
    )  # fmt: skip
    return f"no namespaces here: {done.stderr.strip()}" if done.returncode else ""


def shown(site: Sandbox, machine: str, log: Path, words: str) -> None:
    """Have EC2 show what the machine has printed, once these words are in it."""

    def printed() -> bool:
        return words in log.read_text(errors="replace")

    site.wait_for(printed, 120, f"the machine has printed {words!r}")
    site.ec2.console(machine, log.read_text(errors="replace"))
