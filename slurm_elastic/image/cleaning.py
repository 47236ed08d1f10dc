"""Remove the parts of an image that belong to one machine: host keys, machine id, logs, package
lists.

Each machine makes its own at its first boot. Also remove a unit that is useless on a node.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from slurm_elastic.image import apt, rooted
from slurm_elastic.image.recipe import Recipe

_WANTS = "etc/systemd/system/multi-user.target.wants"
_OF_ONE_MACHINE = (
    "etc/ssh/ssh_host_*", "etc/munge/munge.key", "var/lib/dbus/machine-id",
    "var/lib/systemd/random-seed", "var/lib/cloud/*", "var/cache/apt/*.bin",
    "var/log/*.log", "var/log/apt/*", "var/lib/apt/lists/*_*", "root/.ansible",
)  # fmt: skip


def clean(recipe: Recipe, tree: Path) -> None:
    """Clean the ``tree``. This is the last step before the image is made of it."""
    for unit in ("slurmd.service", "munge.service"):
        rooted.entry(tree, f"{_WANTS}/{unit}").unlink(missing_ok=True)
    if not any(_is_there(tree, f"{place}/lvm") for place in ("usr/sbin", "sbin")):
        # e2scrub_reap looks for LVM snapshots at each boot, which takes seconds. Without LVM there
        # are none.
        for link in rooted.matching(tree, "etc/systemd/system/*.wants/e2scrub_reap.service"):
            link.unlink()
    for pattern in _OF_ONE_MACHINE:
        for path in rooted.matching(tree, pattern):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    # Empty, not absent: systemd then makes an id at the first boot (machine-id(5)).
    rooted.write(tree, "etc/machine-id", "")
    for name in ("vmlinuz.old", "initrd.img.old"):
        rooted.entry(tree, name).unlink(missing_ok=True)
    if any(_is_there(tree, f"{place}/systemd/systemd-resolved") for place in ("usr/lib", "lib")):
        link = rooted.entry(tree, "etc/resolv.conf")
        link.unlink(missing_ok=True)
        link.symlink_to("../run/systemd/resolve/stub-resolv.conf")
    if recipe.munge_key:
        rooted.write(tree, "etc/munge/munge.key", Path(recipe.munge_key).read_bytes(), 0o400)
        set_owner = "chown munge:munge /etc/munge/munge.key"
        apt.in_tree(tree, f"{set_owner} && systemctl enable munge.service")


def _is_there(tree: Path, name: str) -> bool:
    return rooted.target(tree, name).exists()
