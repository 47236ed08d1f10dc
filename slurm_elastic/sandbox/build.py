"""Prepares a sandbox: checks the host, finds free ports, and writes directories and files."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pwd
import re
import secrets
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import yaml

from slurm_elastic.base.errors import SandboxError
from slurm_elastic.config.cloud_kinds import table
from slurm_elastic.machine.ckptroot.site import CONFIG as ROOT_PART_CONFIG
from slurm_elastic.machine.local import local_processes
from slurm_elastic.sandbox.layout import MARKER, Layout
from slurm_elastic.sandbox.loopback_only import require_emulated
from slurm_elastic.sandbox.nebula.world import ELASTIC, sandbox_world
from slurm_elastic.sandbox.spec import (
    Ports,
    SandboxSpec,
    cloud_of,
    elastic,
    machine_part,
    ports_from,
    ports_needed,
    site_conf,
    task_prolog,
)
from slurm_elastic.state import statedir

USER = "slurm"
_PROGRAMS = ("munged", "slurmctld", "slurmd", "scontrol", "sbatch", "setpriv")
_EMULATOR = ("moto", "flask")
"""Modules that only the emulated EC2 needs. They come with the package slurm-elastic-sandbox."""
_SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# Below the ports that the kernel gives out by itself (ip_local_port_range), from 32768 on.
_FIRST_PORT, _LAST_PORT = 20000, 32000
LAST_PORTS = Path("/run/slurm-elastic-sandbox-ports")
"""File with the end of the block of ports that was assigned last, on the whole host. It lies in a
directory that only root may write.
"""
_MAX_PATH = 60


def require_host(spec: SandboxSpec, layout: Layout) -> None:
    """Raise SandboxError if this host or directory cannot hold the sandbox."""
    if cloud_of(spec, "aws") and not all(map(find_spec, _EMULATOR)):
        raise SandboxError(
            "the sandbox's emulated EC2 is a separate package: install slurm-elastic-sandbox"
            " (with pip, in a clone: pip install '.[sandbox]')"
        )
    if os.getuid() != 0:
        raise SandboxError("the sandbox starts slurmd's and munged, which needs root")
    if missing := [p for p in _PROGRAMS if not shutil.which(p, path=_SEARCH_PATH)]:
        raise SandboxError(
            f"not installed: {', '.join(missing)} (Debian: slurmctld slurmd slurm-client"
            " slurm-wlm-basic-plugins munge)"
        )
    try:
        pwd.getpwnam(USER)
    except KeyError:
        raise SandboxError(f"there is no user {USER!r}; Debian's slurmctld makes it") from None
    if len(str(layout.dir)) > _MAX_PATH or re.search(r"[^\w./-]", str(layout.dir)):
        raise SandboxError(
            f"{layout.dir}: sockets and slurm.conf need a directory of at most {_MAX_PATH} plain"
            " characters"
        )
    if spec.static_nodes < 0 or spec.cpus < 1 or spec.memory < 1:
        raise SandboxError("static nodes, cpus and memory must be positive numbers")


def require_python(layout: Layout) -> None:
    """Raise SandboxError unless SlurmUser can run this Python with this package."""
    # Import all that the services import, even at a later time: a Python below /root may be
    # readable only in part.
    test = (
        "import slurm_elastic.cli.services.daemon, slurm_elastic.cli.services.ckptman, mimetypes,"
        " slurm_elastic.providers.aws.provider, slurm_elastic.providers.local.provider"
    )
    done = subprocess.run(
        [*as_slurm(), sys.executable, "-c", test],
        cwd="/",
        env=layout.daemon_env(),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise SandboxError(
            f"user {USER!r} cannot run slurm-elastic with {sys.executable} ({reason});"
            " install it where everyone may read, as in /opt"
        )


def as_slurm() -> list[str]:
    """Return the words before a command that make it run as SlurmUser."""
    account = pwd.getpwnam(USER)
    return ["setpriv", f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--init-groups"]


def free_ports(spec: SandboxSpec) -> Ports:
    """Return a block of consecutive free ports. Raises SandboxError."""
    needed = ports_needed(spec)
    step = -(-needed // 50) * 50
    used_ports = _ports_of_others()
    with _last_ports() as (last_end, record_end):
        blocks = range(_FIRST_PORT, _LAST_PORT - step, 50)
        # Begin after the last assigned block: a sandbox that starts at the same time, and does not
        # listen yet, must get other ports.
        for first_port in sorted(
            blocks, key=lambda first_port: (first_port < last_end, first_port)
        ):
            block = range(first_port, first_port + needed)
            if used_ports.isdisjoint(block) and all(map(_is_free, block)):
                record_end(first_port + step)
                return ports_from(first_port)
    raise SandboxError(f"no {needed} consecutive TCP ports are free on loopback")


@contextlib.contextmanager
def _last_ports() -> Iterator[tuple[int, Callable[[int], None]]]:
    """Yield the end of the last assigned block, and a function that records a new end. The file is
    locked during the ``with`` block, so that no other sandbox on this host assigns ports.
    """
    # Not "w+", which would truncate the file before it is locked.
    with LAST_PORTS.open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        text = file.read()

        def record_end(end: int) -> None:
            file.truncate(0)
            file.write(str(end))

        yield int(text) if text.isdecimal() else 0, record_end


def _ports_of_others() -> set[int]:
    """Return the ports of all running sandboxes. A probe would miss them, because most of their
    nodes are off and do not listen.
    """
    ports: set[int] = set()
    for directory in local_processes.values(MARKER):
        with contextlib.suppress(SandboxError):
            saved = Layout(dir=Path(directory)).read()
            first_port = saved.ports.slurmctld
            ports.update(range(first_port, first_port + ports_needed(saved.spec)))
    return ports


def make_directories(layout: Layout) -> None:
    """Make the directories with their owners. SlurmUser may write only below its own."""
    for name in ("", "etc", "programs", "spool", "log", "run", "run/machines"):
        _directory(layout.dir / name, 0o755)
    slurm = pwd.getpwnam(USER)
    for name in ("slurmctld", "state", "door", "ec2", "one"):
        _directory(layout.dir / name, statedir.DIRECTORY if name == "state" else 0o755)
        os.chown(layout.dir / name, slurm.pw_uid, slurm.pw_gid)
    _directory(layout.dir / "work", 0o1777)
    # slurmctld runs as SlurmUser and cannot create its log in root's directory.
    own_log = layout.log / "slurmctld.log"
    own_log.touch(mode=0o644)
    os.chown(own_log, slurm.pw_uid, slurm.pw_gid)


def write_files(spec: SandboxSpec, ports: Ports, layout: Layout) -> None:
    """Write munge's key, the site's slurm.conf and our configuration."""
    etc = layout.dir / "etc"
    key = etc / "munge.key"
    key.touch(mode=0o600)
    key.write_bytes(secrets.token_bytes(128))
    layout.slurm_conf.write_text(site_conf(spec, ports, host_name()))
    for name, text in spec.slurm_files.items():
        (etc / name).write_text(text)
    if slurm_version() >= (23, 11):
        # slurmd demands a cgroup plugin, or this setting, since 23.11. 22.05 does not know it.
        (etc / "cgroup.conf").write_text("CgroupPlugin=disabled\n")
    config = elastic(spec, ports)
    require_emulated(
        msgspec.convert(cloud, type=table().kind(cloud["provider"]).settings)
        for cloud in config["clouds"]
    )
    write_opennebula(config, layout)
    if serves_images(layout):
        # On other hosts the key stays unset, so that sbatch says at once that criu saves no job.
        config["checkpoint"].setdefault("directory", str(layout.images))
        _directory(layout.images, 0o755)
    if not spec.bare:
        layout.config.write_text(yaml.safe_dump(config, sort_keys=False))
    if spec.image:
        (etc / "machine-part").write_text(machine_part(spec))
    for path in etc.iterdir():
        path.chmod(0o600 if path == key else 0o644)
    prolog = task_prolog(layout.dir)
    # slurmstepd reads such lines from the output of a TaskProlog (slurm.conf(5)).
    prolog.write_text(f"#!/bin/sh\necho export SLURM_CONF={layout.slurm_conf}\n")
    prolog.chmod(0o755)
    if spec.image:
        _write_login(etc, key.read_bytes())


def serves_images(layout: Layout, root_part: Path = Path(ROOT_PART_CONFIG)) -> bool:
    """Return True if this host has a root part for checkpoints, and its configuration names the
    sandbox's directory of images. A real cluster's root part names another one.
    """
    try:
        text = root_part.read_text(errors="replace")
    except OSError:
        return False
    directories = re.findall(r"^\s*directory\s*=\s*(\S+)", text, re.MULTILINE)
    return directories == [str(layout.images)]


def _write_login(etc: Path, munge_key: bytes) -> None:
    """Write the SSH key with which slurm-elasticd copies the munge key to virtual machines. Both
    belong to SlurmUser.
    """
    login, copy = etc / "login", etc / "login-munge.key"
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "sandbox", "-f", str(login)]
    subprocess.run(command, check=True, env={"PATH": _SEARCH_PATH}, stdin=subprocess.DEVNULL)
    copy.touch(mode=0o400)
    copy.write_bytes(munge_key)
    slurm = pwd.getpwnam(USER)
    for path in (login, copy):
        os.chown(path, slurm.pw_uid, slurm.pw_gid)
        path.chmod(0o400)


def write_opennebula(config: dict[str, Any], layout: Layout) -> None:
    """Write the emulated OpenNebula's accounts and hosts, and the daemon's credentials for it."""
    clouds = [c for c in config["clouds"] if c["provider"] == "opennebula"]
    if not clouds:
        return
    password, slurm = secrets.token_hex(16), pwd.getpwnam(USER)
    world = sandbox_world(clouds, password)
    for name, data in (
        ("world.json", msgspec.json.encode(world)),
        ("one_auth", f"{ELASTIC}:{password}\n".encode()),
    ):
        # The directory belongs to SlurmUser already. A file of that name was put there by another
        # process, so root must not follow it or write into it.
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        with open(os.open(layout.dir / "one" / name, flags, 0o600), "wb") as file:
            file.write(data)
            os.fchown(file.fileno(), slurm.pw_uid, slurm.pw_gid)


def host_name() -> str:
    """Return the short host name, which slurmctld and slurmd use."""
    return socket.gethostname().partition(".")[0]


def slurm_version() -> tuple[int, int]:
    """Return the release of the installed slurmctld. Raises SandboxError."""
    done = subprocess.run(
        ["slurmctld", "-V"],
        env={"PATH": _SEARCH_PATH},
        capture_output=True,
        text=True,
        check=False,
    )
    match = re.search(r"(\d+)\.(\d+)", done.stdout)
    if not match:
        raise SandboxError(f"slurmctld -V does not show its version: {done.stderr.strip()}")
    return int(match[1]), int(match[2])


def require_several_slurmds(config: str, version: tuple[int, int]) -> None:
    """Raise SandboxError if this Slurm was built for one slurmd per host, according to the output
    of ``scontrol show config``. Jobs on several nodes would fail.
    """
    match = re.search(r"^MULTIPLE_SLURMD\s*=\s*(\w+)", config, re.MULTILINE)
    # Until 25.05 a Slurm without this option leaves the line out.
    if (match[1].lower() if match else "no" if version < (25, 11) else "yes") == "no":
        raise SandboxError(
            "this Slurm was built without --enable-multiple-slurmd, and all machines of a sandbox"
            " are slurmd's of one host; Debian's is built with it"
        )


def _directory(path: Path, mode: int) -> None:
    path.mkdir(exist_ok=True)
    path.chmod(mode)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
