"""``image check``: look into an image, then boot a machine from it and follow it until it powers
off.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec

from slurm_elastic.base import writing
from slurm_elastic.base.errors import SlurmElasticError
from slurm_elastic.image import disk, head, label, machine, network
from slurm_elastic.image.commands import ENVIRONMENT, remove, require
from slurm_elastic.image.label import Label
from slurm_elastic.image.trial import FAILED, PRIVATE_KEY, TrialOrder

_WANTS = "/etc/systemd/system/multi-user.target.wants"
_ABSENT = (
    "/etc/ssh/ssh_host_ed25519_key", "/etc/ssh/ssh_host_ecdsa_key", "/etc/ssh/ssh_host_rsa_key",
    "/etc/slurm/slurm.conf", f"{_WANTS}/slurmd.service", "/var/lib/systemd/random-seed",
)  # fmt: skip
_MACHINE_IDS = ("/etc/machine-id", "/var/lib/dbus/machine-id")
"""An id in either file would be the same on all machines of the image. The second file may be a
link to the first.
"""
_ID = re.compile(r"^[0-9a-f]{32}$", re.MULTILINE)
_SITE_DIRECTORIES = ("/etc", "/root", "/home", "/var", "/opt", "/srv", "/boot", "/usr/local")
_KEY = ("/etc/munge/munge.key", f"{_WANTS}/munge.service")
"""If munged is enabled without its key, munged does not start, and the boot waits for it."""
_PRESENT = ("/usr/sbin/slurmd", "/usr/sbin/munged", "/usr/bin/cloud-init", "/usr/sbin/sshd")
_PROGRAMS = {
    "debugfs": "e2fsprogs",
    "ssh-keygen": "openssh-client",
    "mmdebstrap": "mmdebstrap",
    "xorriso": "xorriso",
}
# Parent-death signal and pid namespace: if this process dies, in whatever way, its machine dies.
NAMESPACES = (
    "setpriv", "--pdeathsig", "KILL", "unshare", "--net", "--mount", "--pid", "--uts", "--fork",
    "--kill-child", "--mount-proc",
)  # fmt: skip


def check(
    image: Path,
    say: Callable[[str], None],
    *,
    cloud: str = "ec2",
    heartbeat: float,
    timeout: float,
    keep: Path | None,
) -> bool:
    """Return whether a machine of the image becomes a node, runs a job and powers itself off; as
    root.

    ``cloud`` is one of ``cloud_metadata.KINDS``: how the machine learns its identity.
    ``heartbeat``: seconds without the head after which the machine powers itself off. ``timeout``:
    seconds for each step. ``keep``: directory for the console and the logs. SlurmElasticError if
    the host lacks something the check needs.
    """
    _require(image)
    image_label = label.read(image)
    work = Path(tempfile.mkdtemp(prefix="slurm-elastic-check-", dir="/var/tmp"))
    try:
        # slurmctld runs as a user of its own and has its files in there.
        work.chmod(0o755)
        complaints = look_into(image, image_label, work)
        for text in complaints or [
            "the image has slurmd, not enabled, no key and no id of a machine"
        ]:
            say(("FAILED: " if complaints else "") + text)
        accel = machine.accelerator(image, work)
        tree = head.tree_for(image_label.slurm, image_label.codename, say)
        order = TrialOrder(
            image=str(image.resolve()), cloud=cloud, accel=accel, tree=str(tree or ""),
            heartbeat=heartbeat, timeout=timeout, saves="criu-" in image_label.software,
        )  # fmt: skip
        passed = _boot(work, order, say)
        if keep is not None:
            _keep(work, keep)
    finally:
        remove(work)
    return passed and not complaints


def look_into(image: Path, image_label: Label, work: Path) -> list[str]:
    """Return complaints about the files on an image's disk, without booting it."""
    place = work / "looked-into"
    place.mkdir(mode=0o700)  # all of the image's files, a key too where it has one
    raw_disk = place / "raw"
    try:
        disk.to_raw(image, raw_disk)
        absent = _ABSENT if image_label.secret else (*_ABSENT, *_KEY)
        complaints = [f"{path} is in the image" for path in absent if _is_there(raw_disk, path)]
        ids = [name for name in _MACHINE_IDS if _ID.search(disk.inside(raw_disk, f"cat {name}"))]
        complaints += [f"{name} has an id, which each machine is to make itself" for name in ids]
        complaints += [
            f"{path} is not in the image" for path in _PRESENT if not _is_there(raw_disk, path)
        ]
        return [*complaints, *_private_keys(raw_disk, place / "files")]
    finally:
        shutil.rmtree(place)


def _private_keys(raw_disk: Path, place: Path) -> list[str]:
    """Return complaints about private keys in directories where sites put files. Keys below /usr
    are ignored: packages publish those as examples and for self-tests.
    """
    place.mkdir()
    directories = [name for name in _SITE_DIRECTORIES if _is_there(raw_disk, name)]
    disk.inside(raw_disk, f"rdump {' '.join(directories)} {place}")
    files = [path for path in place.rglob("*") if path.is_file() and not path.is_symlink()]
    key_files = [path for path in files if PRIVATE_KEY.search(path.read_bytes())]
    return [f"a private key is in /{path.relative_to(place)}" for path in sorted(key_files)]


def _is_there(raw_disk: Path, path: str) -> bool:
    return "Inode:" in disk.inside(raw_disk, f"stat {path}")


def _boot(work: Path, order: TrialOrder, say: Callable[[str], None]) -> bool:
    (work / "order.json").write_bytes(msgspec.json.encode(order))
    command = [*NAMESPACES, sys.executable, "-P", "-m", "slurm_elastic.image.trial", str(work)]
    environment = {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}
    with (
        (work / "trial.out").open("wb") as errors,
        subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True,
            env=ENVIRONMENT | environment,
        ) as process,
    ):  # fmt: skip
        try:
            assert process.stdout is not None  # noqa: S101 - a pipe was asked for
            for line in process.stdout:
                say(line.rstrip())
            code = process.wait()
        finally:
            process.kill()
    if code not in (0, FAILED):
        last_lines = (work / "trial.out").read_text(errors="replace").strip().splitlines()[-3:]
        raise SlurmElasticError(f"the check broke off: {' / '.join(last_lines)}")
    return code == 0


def _keep(work: Path, place: Path) -> None:
    place.mkdir(parents=True, exist_ok=True)
    for path in work.iterdir():
        if path.is_file() and (path.suffix == ".out" or path.name == "console"):
            writing.replace(place / path.name, path.read_bytes(), 0o644)
    log = work / "state" / "slurmctld.log"
    if log.exists():
        writing.replace(place / log.name, log.read_bytes(), 0o644)


def _require(image: Path) -> None:
    if not image.is_file():
        raise SlurmElasticError(f"{image} is no file")
    if os.geteuid() != 0:
        raise SlurmElasticError("the check makes a network for its machine, which needs root")
    require(disk.PROGRAMS | machine.PROGRAMS | network.PROGRAMS | _PROGRAMS)
