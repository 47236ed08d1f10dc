"""``image check``: looks into an image, then boots a machine from it and follows it to its end."""

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
"""Files by which all machines of an image would be one, where an id is in them; the second one may
be a link to the first.
"""
_ID = re.compile(r"^[0-9a-f]{32}$", re.MULTILINE)
_OF_SITES = ("/etc", "/root", "/home", "/var", "/opt", "/srv", "/boot", "/usr/local")
_KEY = ("/etc/munge/munge.key", f"{_WANTS}/munge.service")
"""Without its key munged does not start, and the boot waits for it."""
_THERE = ("/usr/sbin/slurmd", "/usr/sbin/munged", "/usr/bin/cloud-init", "/usr/sbin/sshd")
_PROGRAMS = {
    "debugfs": "e2fsprogs",
    "ssh-keygen": "openssh-client",
    "mmdebstrap": "mmdebstrap",
    "xorriso": "xorriso",
}
# The machine goes with this process, however that ends.
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
    """Whether a machine of the image becomes a node, runs a job and ends itself; as root.

    ``cloud``, among ``cloud_metadata.KINDS``, is who tells the machine who it is. ``heartbeat`` (s)
    is how long the machine waits for a head that is gone, ``timeout`` (s) how long a step may take;
    ``keep`` gets console and logs. SlurmElasticError for what the host lacks.
    """
    _require(image)
    about = label.read(image)
    work = Path(tempfile.mkdtemp(prefix="slurm-elastic-check-", dir="/var/tmp"))
    try:
        work.chmod(0o755)
        complaints = look_into(image, about, work)
        for text in complaints or [
            "the image has slurmd, not enabled, no key and no id of a machine"
        ]:
            say(("FAILED: " if complaints else "") + text)
        accel = machine.accelerator(image, work)
        tree = head.tree_for(about.slurm, about.codename, say)
        order = TrialOrder(
            image=str(image.resolve()), cloud=cloud, accel=accel, tree=str(tree or ""),
            heartbeat=heartbeat, timeout=timeout, saves="criu-" in about.software,
        )  # fmt: skip
        passed = _boot(work, order, say)
        if keep is not None:
            _keep(work, keep)
    finally:
        remove(work)
    return passed and not complaints


def look_into(image: Path, about: Label, work: Path) -> list[str]:
    """The complaints about what is on an image's disk, without booting it."""
    place = work / "looked-into"
    place.mkdir(mode=0o700)  # all of the image's files, a key too where it has one
    raw = place / "raw"
    try:
        disk.to_raw(image, raw)
        absent = _ABSENT if about.secret else (*_ABSENT, *_KEY)
        found = [f"{path} is in the image" for path in absent if _is_there(raw, path)]
        ids = [name for name in _MACHINE_IDS if _ID.search(disk.inside(raw, f"cat {name}"))]
        found += [f"{name} has an id, which each machine is to make itself" for name in ids]
        found += [f"{path} is not in the image" for path in _THERE if not _is_there(raw, path)]
        return [*found, *_private_keys(raw, place / "files")]
    finally:
        shutil.rmtree(place)


def _private_keys(raw: Path, place: Path) -> list[str]:
    """The complaints about files with a private key where sites put them. Below /usr are those that
    packages publish, as examples and for self-tests.
    """
    place.mkdir()
    there = [name for name in _OF_SITES if _is_there(raw, name)]
    disk.inside(raw, f"rdump {' '.join(there)} {place}")
    files = [path for path in place.rglob("*") if path.is_file() and not path.is_symlink()]
    found = [path for path in files if PRIVATE_KEY.search(path.read_bytes())]
    return [f"a private key is in /{path.relative_to(place)}" for path in sorted(found)]


def _is_there(raw: Path, path: str) -> bool:
    return "Inode:" in disk.inside(raw, f"stat {path}")


def _boot(work: Path, order: TrialOrder, say: Callable[[str], None]) -> bool:
    (work / "order.json").write_bytes(msgspec.json.encode(order))
    words = [*NAMESPACES, sys.executable, "-P", "-m", "slurm_elastic.image.trial", str(work)]
    kept = {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}
    with (
        (work / "trial.out").open("wb") as errors,
        subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True,
            env=ENVIRONMENT | kept,
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
        said = (work / "trial.out").read_text(errors="replace").strip().splitlines()[-3:]
        raise SlurmElasticError(f"the check broke off: {' / '.join(said)}")
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
