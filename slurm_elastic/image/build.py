"""``image build``: make an image file from a recipe, and the label beside it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from slurm_elastic.base.errors import ConfigError, SlurmElasticError
from slurm_elastic.image import apt, disk, rooted, tree
from slurm_elastic.image.commands import ENVIRONMENT, remove, require, run
from slurm_elastic.image.label import Label, label_file, write
from slurm_elastic.image.recipe import Recipe, packages

KINDS = {".qcow2": "qcow2", ".raw": "raw", ".img": "raw", ".tar": "tar"}
"""Image format by the ending of the file's name; ``tar`` is for ``docker import``."""
_PROGRAMS = {"mmdebstrap": "mmdebstrap", "apt-get": "apt", "unshare": "util-linux"}


def kind_of(file: Path) -> str:
    """Return the format of an image file. ConfigError if ``KINDS`` does not have the name's
    ending.
    """
    kind = KINDS.get(file.suffix)
    if kind is None:
        raise ConfigError(f"{file}: found {file.suffix or 'no ending'}, expected one of "
                          f"{', '.join(KINDS)}")  # fmt: skip
    return kind


def build(recipe: Recipe, file: Path, say: Callable[[str], None]) -> Label:
    """Make the image; as root. If a step fails, no file is left. ``say`` gets a line for each step.

    If ``file`` is a directory, the image gets a name that says what it contains.
    """
    named = not file.is_dir()
    kind = kind_of(file) if named else "qcow2"
    _require(kind)
    tree.check_files(recipe)
    debian = recipe.debian or apt.host_release()
    slurm = recipe.slurm or head_release()
    directory = file.parent if named else file
    work = Path(tempfile.mkdtemp(prefix=".slurm-elastic-image-", dir=directory))
    try:
        label = _make_draft(recipe, work, debian, slurm, kind, say)
        label = replace(label, file=file.name if named else f"{label.name}.{kind}")
        target = directory / label.file
        if label.secret:
            # Restrict the mode before the rename, so that others can never read the munge key.
            (work / "image").chmod(0o600)
        os.replace(work / "image", target)
        write(label_file(target), label)
    finally:
        remove(work)
    say(f"{target}: {disk.filled(target) >> 20} MiB, Debian {label.version} with {label.software}")
    return label


def _make_draft(
    recipe: Recipe, work: Path, debian: str, slurm: str | None, kind: str,
    say: Callable[[str], None],
) -> Label:  # fmt: skip
    """Write the image to ``work/image`` and return its label, still without the file's name."""
    root = work / "root"
    number = len(packages(recipe, debian, booted=kind != "tar"))
    say(f"Debian {debian} with {number} packages and what they need"
        + (f", Slurm {slurm}" if slurm else ""))  # fmt: skip
    slurm_version = tree.make(recipe, root, debian, slurm, booted=kind != "tar")
    label = _label(recipe, root, slurm_version, kind, debian)
    draft = work / "image"
    if kind == "tar":
        say("tar file")
        run(["tar", "--numeric-owner", "-C", root, "-cf", draft, "."])
        return label
    say(f"disk of {recipe.size} MiB that boots")
    raw_disk = draft if kind == "raw" else work / "raw"
    disk.write_raw(root, raw_disk, recipe.size)
    if kind == "qcow2":
        say("qcow2")
        disk.to_qcow2(raw_disk, draft)
    return label


def _label(recipe: Recipe, root: Path, slurm: str, kind: str, debian: str) -> Label:
    text = rooted.target(root, "etc/debian_version").read_text(encoding="utf-8").strip()
    version = text.partition("/")[0]
    software = [f"slurm-{slurm}"]
    if recipe.criu:
        software.append(f"criu-{apt.version_in(root, 'criu')}")
    for is_wanted, package in ((recipe.apptainer, "apptainer"), (recipe.pyxis, "enroot")):
        if is_wanted:
            software.append(f"{package}-{apt.version_in(root, package)}")
    if recipe.pyxis:
        software.append("pyxis")
    day = time.strftime("%Y%m%d", time.gmtime())
    return Label(
        name=f"slurm-{slurm}-debian-{version}-{day}",
        file="",
        kind=kind,
        os="debian",
        version=version,
        codename=debian,
        software=" ".join(software),
        built=time.time(),
        secret=recipe.munge_key is not None,
    )


def head_release() -> str | None:
    """Return the release of Slurm on this host (24.11), or None if it has none."""
    for program in ("slurmctld", "slurmd"):
        path = shutil.which(program, path=ENVIRONMENT["PATH"])
        if path:
            result = subprocess.run([path, "-V"], capture_output=True, text=True, check=False)
            if match := re.search(r"(\d+\.\d+)", result.stdout):
                return match[1]
    return None


def _require(kind: str) -> None:
    if os.geteuid() != 0:
        raise SlurmElasticError("an image's files belong to its own users, which needs root")
    require(_PROGRAMS | ({} if kind == "tar" else disk.PROGRAMS))
    if kind != "tar" and not (disk.GRUB / "boot.img").exists():
        raise SlurmElasticError("not installed: grub-pc-bin (Debian's package)")
