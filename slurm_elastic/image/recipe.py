"""The recipe of an image: a site's YAML file as frozen values, and what follows from it. Pure."""

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
"""To this user cloud-init gives the cloud's key pair, and the right to be root."""
SLURM = ("slurmd", "slurm-client", "slurm-wlm-basic-plugins", "munge")
_BASE = ("python3", "ca-certificates", "iproute2", "procps", "nftables", "sudo")
_BOOTED = (
    "linux-image-cloud-amd64", "initramfs-tools", "zstd", "init", "systemd-sysv", "udev", "dbus",
    "kmod", "cloud-init", "cloud-guest-utils", "openssh-server", "netplan.io", "systemd-resolved",
    "systemd-timesyncd", "e2fsprogs", "libnss-myhostname",
)  # fmt: skip
"""The packages that a machine has that boots, and a container has not."""
_DHCP = {"bookworm": "isc-dhcp-client"}
_FILE_SYSTEMS = {"nfs": "nfs-common", "nfs4": "nfs-common", "fuse.sshfs": "sshfs",
                 "cifs": "cifs-utils", "fuse.s3fs": "s3fs"}  # fmt: skip


class Recipe(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An image of Debian with Slurm's part for compute nodes.

    ``debian`` is a codename (None: this host's), ``slurm`` the release that it must have (None:
    this host's, where it has one). ``size`` (MiB) is of the disk, whose file system grows on larger
    ones. ``sources`` are further lines of apt's sources.list, ``packages`` further packages.
    ``files`` is a directory that is laid over /. ``users`` are copied from this host's passwd with
    their groups. ``mounts`` are lines of fstab. ``run`` are shell commands in the image,
    ``ansible`` a playbook for it, ``cloud_init`` a file for /etc/cloud/cloud.cfg.d. ``criu`` brings
    CRIU and the root part. ``munge_key``: this file is in the image, which then is a secret.
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
    munge_key: str | None = None


def packages(recipe: Recipe, debian: str, *, booted: bool) -> tuple[str, ...]:
    """Debian's packages in the image; ``booted``: not of a container."""
    wanted = [*_BASE, *SLURM]
    if booted:
        wanted += [*_BOOTED, _DHCP.get(debian, "dhcpcd-base")]
    if recipe.criu:
        wanted.append("criu")
    for line in recipe.mounts:
        words = line.split()
        if len(words) > 2 and words[2] in _FILE_SYSTEMS:
            wanted.append(_FILE_SYSTEMS[words[2]])
    return tuple(dict.fromkeys([*wanted, *recipe.packages]))


def problems(recipe: Recipe) -> list[str]:
    """The sentences about what its types let pass."""
    checks = [("debian", recipe.debian, _CODENAME, "a codename such as trixie"),
              ("slurm", recipe.slurm, _RELEASE, "a release such as \"24.11\"")]  # fmt: skip
    checks += [
        (f"packages[{at}]", name, _PACKAGE, "the name of a package")
        for at, name in enumerate(recipe.packages)
    ]
    checks += [
        (
            f"mounts[{at}]",
            line,
            _MOUNT,
            "a line of fstab: what, where (no '..'), file system, options",
        )
        for at, line in enumerate(recipe.mounts)
    ]
    checks += [
        (f"sources[{at}]", line, _SOURCE, "a line of sources.list that begins with 'deb '")
        for at, line in enumerate(recipe.sources)
    ]
    return [
        f"{key}: found {text!r}, expected {expected}"
        for key, text, form, expected in checks
        if text is not None and not form.fullmatch(text)
    ]
