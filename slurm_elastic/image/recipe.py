"""The recipe of an image: a site's YAML file as frozen values, and its list of packages. Pure."""

from __future__ import annotations

import re
from typing import Annotated

from msgspec import Meta, Struct

_CODENAME = re.compile(r"[a-z][a-z0-9-]*")
_RELEASE = re.compile(r"\d\d\.\d\d")
_PACKAGE = re.compile(r"[a-z0-9][a-z0-9+.:=~-]*")
_MOUNT = re.compile(r"\S+[ \t]+(?!\S*/\.\.(/|[ \t]))/\S*([ \t]+\S+){2,4}")
_SOURCE = re.compile(r"deb .+")

LOGIN = "debian"
"""cloud-init gives this user the cloud's key pair and the right to become root."""
SLURM = ("slurmd", "slurm-client", "slurm-wlm-basic-plugins", "munge")
_BASE = ("python3", "ca-certificates", "iproute2", "procps", "nftables", "sudo")
_BOOTED = (
    "linux-image-cloud-amd64", "initramfs-tools", "zstd", "init", "systemd-sysv", "udev", "dbus",
    "kmod", "cloud-init", "cloud-guest-utils", "openssh-server", "netplan.io", "systemd-resolved",
    "systemd-timesyncd", "e2fsprogs", "libnss-myhostname", "nfs-common",
)  # fmt: skip
"""Packages for machines that boot. Containers do not need them. nfs-common: ``join.mounts``."""
NFS_3 = "nfs"
"""The file system type of fstab that may mean NFS 3, which needs further daemons."""
_DHCP = {"bookworm": "isc-dhcp-client"}
_FILE_SYSTEMS = {NFS_3: "nfs-common", "nfs4": "nfs-common", "fuse.sshfs": "sshfs",
                 "cifs": "cifs-utils", "fuse.s3fs": "s3fs"}  # fmt: skip


BUILD_TOOLS = ("gcc", "libc6-dev", "make", "libslurm-dev")
"""Packages that Pyxis is built with. ``containers`` removes them again."""
_NO_APPTAINER = ("bookworm", "trixie")
"""Releases of Debian without a package of Apptainer (seen in November 2026: only sid has one)."""


class Recipe(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An image of Debian with Slurm's part for compute nodes.

    - ``debian``: a codename (None: this host's release).
    - ``slurm``: the release of Slurm that the image must have (None: this host's, if it has one).
    - ``size``: MiB of the disk. On a larger disk the file system grows.
    - ``sources``: further lines of apt's sources.list. ``packages``: further packages.
    - ``files``: a directory to copy over /.
    - ``users``: names to copy from this host's passwd, with their groups.
    - ``mounts``: lines of fstab.
    - ``run``: shell commands in the image. ``ansible``: a playbook for it.
    - ``cloud_init``: a file for /etc/cloud/cloud.cfg.d.
    - ``criu``: install CRIU and the root part of checkpoints.
    - ``apptainer``: install Apptainer. ``pyxis``: a directory with Pyxis' source, to build and to
      install with Enroot (``containers``).
    - ``munge_key``: a file to put into the image, which makes the image a secret.
    """

    debian: str | None = None
    slurm: str | None = None
    size: Annotated[int, Meta(ge=2048, extra={"unit": "size"})] = 4096
    sources: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    files: str | None = None
    users: tuple[str, ...] = ()
    mounts: tuple[str, ...] = ()
    run: tuple[str, ...] = ()
    ansible: str | None = None
    cloud_init: str | None = None
    criu: bool = False
    apptainer: bool = False
    pyxis: str | None = None
    munge_key: str | None = None


def packages(recipe: Recipe, debian: str, *, booted: bool) -> tuple[str, ...]:
    """Return the Debian packages of the image; ``booted`` is False for a container."""
    names = [*_BASE, *SLURM]
    if booted:
        names += [*_BOOTED, _DHCP.get(debian, "dhcpcd-base")]
    if recipe.criu:
        names.append("criu")
    if recipe.apptainer:
        # fuse-overlayfs: without it a user's container has no writable layer.
        names += ["apptainer", "fuse-overlayfs", "squashfuse"]
    if recipe.pyxis:
        names += ["enroot", *BUILD_TOOLS]
    for line in recipe.mounts:
        fields = line.split()
        if len(fields) > 2 and fields[2] in _FILE_SYSTEMS:
            names.append(_FILE_SYSTEMS[fields[2]])
    return tuple(dict.fromkeys([*names, *recipe.packages]))


def may_use_nfs_3(recipe: Recipe) -> bool:
    """Return whether a mount of the recipe may speak NFS 3."""
    return any(line.split()[2:3] == [NFS_3] for line in recipe.mounts)


def problems(recipe: Recipe) -> list[str]:
    """Return a sentence for each field whose value fits its type but is wrong."""
    checks = [("debian", recipe.debian, _CODENAME, "a codename such as trixie"),
              ("slurm", recipe.slurm, _RELEASE, "a release such as \"24.11\"")]  # fmt: skip
    checks += [
        (f"packages[{index}]", name, _PACKAGE, "the name of a package")
        for index, name in enumerate(recipe.packages)
    ]
    checks += [
        (
            f"mounts[{index}]",
            line,
            _MOUNT,
            "a line of fstab: what, where (no '..'), file system, options",
        )
        for index, line in enumerate(recipe.mounts)
    ]
    checks += [
        (f"sources[{index}]", line, _SOURCE, "a line of sources.list that begins with 'deb '")
        for index, line in enumerate(recipe.sources)
    ]
    missing = [
        f"{key}: found {value!r}, expected also sources with the package {package}, which Debian "
        f"{recipe.debian or 'itself'} does not have"
        for key, value, package in _foreign_packages(recipe)
        if not recipe.sources
    ]
    return missing + [
        f"{key}: found {value!r}, expected {expected}"
        for key, value, pattern, expected in checks
        if value is not None and not pattern.fullmatch(value)
    ]


def _foreign_packages(recipe: Recipe) -> list[tuple[str, object, str]]:
    """The keys that need a package which Debian does not have, each with that package."""
    foreign: list[tuple[str, object, str]] = []
    if recipe.apptainer and recipe.debian in _NO_APPTAINER:
        foreign.append(("apptainer", recipe.apptainer, "apptainer"))
    if recipe.pyxis:
        foreign.append(("pyxis", recipe.pyxis, "enroot"))
    return foreign
