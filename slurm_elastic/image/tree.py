"""The tree of an image: Debian with Slurm's part for nodes and the site's additions.

It contains nothing that belongs to one machine (``cleaning``): each machine makes its host keys,
machine id and host name at its first boot. It contains no secret, except the munge key if the
recipe names one. slurmd and munged are not enabled, because without configuration and key they
would fail and delay the boot. Joining (programs/join.sh) starts both.
"""

from __future__ import annotations

import grp
import os
import pwd
import re
import shlex
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from slurm_elastic.base.errors import ConfigError, SlurmElasticError
from slurm_elastic.image import apt, rooted
from slurm_elastic.image.cleaning import clean
from slurm_elastic.image.commands import require, run
from slurm_elastic.image.containers import add_pyxis
from slurm_elastic.image.recipe import LOGIN, Recipe, may_use_nfs_3, packages
from slurm_elastic.machine.ckptroot.bundle import build as build_root_part
from slurm_elastic.slurm.conf.checks.node_names import LIBRARY as NSS_SLURM
from slurm_elastic.slurm.hooks.launcher import PROGRAM as ROOT_PART

_NSSWITCH = "etc/nsswitch.conf"
_SYSTEMD = PurePosixPath("etc/systemd")
_SYSCTLS = b"""\
kernel.yama.ptrace_scope = 0
net.ipv4.ip_nonlocal_bind = 1
-kernel.io_uring_disabled = 2
"""
"""All three are for CRIU. It restores as the job's user, who may trace only with ptrace_scope 0. A
restored socket may be bound to another node's address. CRIU cannot save io_uring, and node.js does
without where the kernel forbids it. The minus: kernels before 6.6 lack the key (sysctl.d(5)).
"""
# Lets jobs start the program that saves them. It has the rules of etc/sudoers.d-slurm-elastic,
# which is no part of a wheel.
_SUDOERS = f"""\
Cmnd_Alias SLURM_ELASTIC_CKPT = {ROOT_PART} ready *, {ROOT_PART} run *, {ROOT_PART} attend
Defaults!SLURM_ELASTIC_CKPT env_reset, !requiretty, !use_pty, !pam_session, rlimit_core=user
Defaults!SLURM_ELASTIC_CKPT preserve_groups
ALL ALL=(root) NOPASSWD: SLURM_ELASTIC_CKPT
"""


# No locale and no RSA key, whose generation takes long; the apt sources stay. The locale must be a
# string: cloud-init 22.4 (bookworm) refuses other values.
_CLOUD_INIT = """\
locale: "no"
ssh_genkeytypes: [ed25519, ecdsa]
apt: {preserve_sources_list: true}
"""


_NEEDLESS = ("apt-daily.timer", "apt-daily-upgrade.timer", "dpkg-db-backup.timer",
             "e2scrub_all.timer", "modprobe@drm.service", "systemd-pstore.service",
             "systemd-repart.service")  # fmt: skip
"""systemd units that only delay a compute node: it is replaced rather than upgraded, and has no
screen.
"""
_NFS_3 = ("rpcbind.service", "rpcbind.socket", "nfs-blkmap.service")
"""systemd units of nfs-common that NFS 4 does not need. rpcbind would listen to the network."""
_GENERATORS = {
    "gpt-auto": "", "hibernate-resume": "", "run": "", "system-update": "",
    "cryptsetup": "crypttab", "integritysetup": "integritytab", "veritysetup": "veritytab",
}  # fmt: skip
"""systemd generators that a node does not need, unless /etc has the table that the generator reads;
see systemd.generator(7).
"""
_DIRECTORIES = ("files", "pyxis")
_COLDPLUG = "systemd-udev-trigger.service"
_PLUGGED = """\
# At boot udev triggers all devices, drivers and modules. Only devices have rules. The subsystems
# excluded here need no rules and no driver, and a large machine has thousands of such devices.
# Virtual consoles are excluded, too.
[Service]
ExecStart=
ExecStart={line} {without}
ExecStart=-udevadm trigger --action=add --subsystem-match=tty {terminals}
"""
_WITHOUT = " ".join(
    f"--subsystem-nomatch={name}"
    for name in ("tty", "vc", "memory", "wakeup", "workqueue", "event_source", "clockevents",
                 "clocksource", "bdi")
)  # fmt: skip
_INITRD_HOOK = "/etc/initramfs-tools/hooks/slurm-elastic"
_INITRD = """\
#!/bin/sh
# The root is ext4 on a local disk. Drivers of other and of network file systems would only make the
# initrd larger, which is unpacked at each boot. Drivers of virtual network cards stay, because
# programs/again.sh identifies the machine by its cards before udev has run. See initramfs-tools(7).
[ "$1" != prereqs ] || exit 0
cd "$DESTDIR/lib/modules/$version/kernel" || exit 0
rm -rf drivers/infiniband drivers/md drivers/block/drbd drivers/block/rbd.ko* \\
  net/ceph net/sunrpc fs/btrfs fs/f2fs fs/jfs fs/lockd fs/netfs fs/nfs fs/nfs_common \\
  fs/reiserfs fs/xfs
[ ! -d drivers/net ] || find drivers/net -name '*.ko*' ! -name 'virtio_net.ko*' \\
  ! -name 'net_failover.ko*' ! -name 'ena.ko*' ! -name 'gve.ko*' ! -name 'hv_netvsc.ko*' \\
  ! -name 'xen-netfront.ko*' ! -name 'vmxnet3.ko*' ! -name 'ixgbevf.ko*' ! -name 'e1000*.ko*' \\
  ! -name '8139cp.ko*' ! -name 'mii.ko*' -delete
# In the initrd udev needs to find only the disk. It finds the rest after the root is mounted.
udev=$DESTDIR/scripts/init-top/udev
[ ! -e "$udev" ] || sed -i '/udevadm trigger .*--type=devices/s/$/ @WITHOUT@/' "$udev"
"""


def make(recipe: Recipe, tree: Path, debian: str, slurm: str | None, *, booted: bool) -> str:
    """Make the whole tree in the new directory ``tree`` and return its release of Slurm (24.11.5).

    SlurmElasticError if the tree's release of Slurm does not belong to ``slurm`` (24.11).
    """
    names = packages(recipe, debian, booted=booted)
    hook = tree.with_name("initrd")
    hook.write_text(_INITRD.replace("@WITHOUT@", _WITHOUT), encoding="utf-8")
    early_command = (
        f'install -D -m 755 {shlex.quote(str(hook))} "$1{_INITRD_HOOK}"' if booted else ""
    )
    apt.bootstrap(debian, tree, names, recipe.sources, early_command)
    slurm_version = slurm_in(tree)
    if slurm is not None and not slurm_version.startswith(f"{slurm}."):
        raise SlurmElasticError(
            f"Debian {debian} has Slurm {slurm_version or 'none'}, the head {slurm}: name another "
            "release of Debian in the recipe (debian:), or a source of packages of that release "
            "(sources:)"
        )
    lay_over(recipe, tree)
    copy_users(recipe.users, tree)
    name_nodes(tree)
    if booted:
        mask(tree, () if may_use_nfs_3(recipe) else _NFS_3)
        limit_coldplug(tree)
        ignore_dhcp_name(tree)
        add_login(tree)
    if recipe.criu:
        _add_root_part(tree)
    if recipe.pyxis:
        add_pyxis(recipe.pyxis, tree)
    for command in recipe.run:
        apt.in_tree(tree, command)
    if recipe.ansible:
        playbook = ["ansible-playbook", "-c", "community.general.chroot", "-i", f"{tree},"]
        run([*playbook, recipe.ansible], HOME="/root")
    if booted:
        run_first_boot_work(tree)
    clean(recipe, tree)
    return slurm_version


def slurm_in(tree: Path) -> str:
    """Return the version of the tree's slurmd, from Debian's package or SchedMD's; "" if it has
    none.
    """
    return apt.version_in(tree, "slurmd") or apt.version_in(tree, "slurm-smd-slurmd")


def check_files(recipe: Recipe) -> None:
    """ConfigError for a file, directory or user of the recipe that this host does not have."""
    problems = []
    for key in ("files", "pyxis", "ansible", "cloud_init", "munge_key"):
        path = getattr(recipe, key)
        if path is None:
            continue
        exists = Path(path).is_dir() if key in _DIRECTORIES else Path(path).is_file()
        if not exists:
            kind = "directory" if key in _DIRECTORIES else "file"
            problems.append(f"{key}: found {path!r}, expected a {kind} of this host")
    for index, name in enumerate(recipe.users):
        try:
            pwd.getpwnam(name)
        except KeyError:
            problems.append(f"users[{index}]: found {name!r}, expected a user of this host")
    if problems:
        raise ConfigError(*problems)
    if recipe.ansible:
        require({"ansible-playbook": "ansible"})


def lay_over(recipe: Recipe, tree: Path) -> None:
    """Copy the site's files into the tree, and write cloud-init's settings and the mounts."""
    if recipe.files:
        # --remove-destination replaces a link in the tree. Otherwise cp would write to the link's
        # target, which may be outside the tree.
        copy = ["cp", "-a", "--no-preserve=ownership", "--remove-destination"]
        run([*copy, f"{recipe.files}/.", tree])
    settings = "etc/cloud/cloud.cfg.d"
    rooted.write(tree, f"{settings}/80_slurm-elastic.cfg", _CLOUD_INIT)
    if recipe.cloud_init:
        rooted.write(tree, f"{settings}/95_site.cfg", Path(recipe.cloud_init).read_bytes())
    if recipe.mounts:
        rooted.write(tree, "etc/fstab", "".join(f"{line}\n" for line in recipe.mounts))
        for line in recipe.mounts:
            rooted.target(tree, line.split()[1]).mkdir(parents=True, exist_ok=True)


def mask(tree: Path, units: Sequence[str] = ()) -> None:
    """Mask the units and generators that a node does not need, and ``units``.

    A file that the site has put there stays, and the site's ``run`` may unmask a unit.
    """
    places = [_SYSTEMD / "system" / unit for unit in (*_NEEDLESS, *units)]
    places += [_generator(name) for name in _GENERATORS]
    for place in (rooted.entry(tree, path) for path in places):
        place.parent.mkdir(parents=True, exist_ok=True)
        if not os.path.lexists(place):
            place.symlink_to("/dev/null")


def _generator(name: str) -> PurePosixPath:
    return _SYSTEMD / "system-generators" / f"systemd-{name}-generator"


def limit_coldplug(tree: Path) -> None:
    """Make udev trigger fewer devices at boot. The command is taken from the release's own unit."""
    unit = rooted.target(tree, f"usr/lib/systemd/system/{_COLDPLUG}")
    lines = [x for x in unit.read_text(encoding="utf-8").splitlines() if "udevadm trigger" in x]
    if len(lines) != 1:  # unknown form of the unit: leave it as it is
        return
    line = lines[0].removeprefix("ExecStart=").replace("--type=all", "--type=devices")
    terminals = "--sysname-match=tty[A-Z]* --sysname-match=[!t]*"
    text = _PLUGGED.format(line=line, without=_WITHOUT, terminals=terminals)
    rooted.write(tree, f"{_SYSTEMD}/system/{_COLDPLUG}.d/slurm-elastic.conf", text)


def copy_users(names: tuple[str, ...], tree: Path) -> None:
    """Copy users' lines of passwd, and their groups with them as members. None gets a password."""
    for name in names:
        user = pwd.getpwnam(name)
        primary = grp.getgrgid(user.pw_gid)
        groups = [primary, *(g for g in grp.getgrall() if name in g.gr_mem)]
        for group in groups:
            _merge_group(tree, group.gr_name, group.gr_gid, name if group is not primary else "")
        fields = (name, "x", user.pw_uid, user.pw_gid, user.pw_gecos, user.pw_dir, user.pw_shell)
        passwd, shadow = (rooted.target(tree, f"etc/{file}") for file in ("passwd", "shadow"))
        if _add_line(passwd, ":".join(map(str, fields)), str(user.pw_uid)):
            _add_line(shadow, f"{name}:!*:19000:0:99999:7:::", "")


def add_login(tree: Path) -> None:
    """Add the user for the cloud's key pair, before cloud-init would."""
    lines = rooted.target(tree, "etc/passwd").read_text(encoding="utf-8").splitlines()
    if not any(line.startswith(f"{LOGIN}:") for line in lines):
        # Not below /home: that may be the site's shared homes, where another person may have this
        # number. The other person would own the login's keys and could become root.
        home = f"--create-home --home-dir /var/lib/{LOGIN}"
        apt.in_tree(tree, f"useradd --system --user-group {home} --shell /bin/bash {LOGIN}")


def _merge_group(tree: Path, name: str, number: int, member: str) -> None:
    path = rooted.target(tree, "etc/group")
    _add_line(path, f"{name}:x:{number}:", str(number))
    if not member:
        return
    lines = path.read_text(encoding="utf-8").splitlines()
    for index, line in enumerate(lines):
        fields = line.split(":")
        if fields[0] == name:
            fields[3] = ",".join(dict.fromkeys([*filter(None, fields[3].split(",")), member]))
            lines[index] = ":".join(fields)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def _add_line(path: Path, line: str, number: str) -> bool:
    """Add a line of passwd, group or shadow unless its name is there. Return whether it was added.

    SlurmElasticError if the name has another number in the image, or the number another name.
    """
    name = line.split(":")[0]
    for present in path.read_text(encoding="utf-8").splitlines():
        fields = present.split(":")
        if fields[0] == name:
            if number and fields[2] != number:
                raise SlurmElasticError(
                    f"{name} has the number {number} on this host and {fields[2]} in the image"
                )
            return False
        if number and fields[2:3] == [number]:
            raise SlurmElasticError(
                f"{name} has the number {number} on this host, but in the image {fields[0]} has it"
            )
    with path.open("a", encoding="utf-8") as file:
        file.write(f"{line}\n")
    return True


def _add_root_part(tree: Path) -> None:
    for path, content, mode in (
        (ROOT_PART, build_root_part(), 0o755),
        ("/etc/sudoers.d/slurm-elastic", _SUDOERS.encode(), 0o440),
        ("/etc/sysctl.d/60-slurm-elastic.conf", _SYSCTLS, 0o644),
    ):
        rooted.write(tree, path, content, mode)


def name_nodes(tree: Path) -> None:
    """Make Slurm resolve the names of a job's nodes, if a package has brought nss_slurm. Debian has
    no such package, but SchedMD's sources have one.
    """
    if not any(rooted.matching(tree, f"usr/lib/*/{NSS_SLURM}")):
        return
    path = rooted.target(tree, _NSSWITCH)
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    if not re.search(r"^hosts:.*\bslurm\b", text, re.M):
        rooted.write(tree, _NSSWITCH, re.sub(r"^(hosts:\s+files)\b", r"\1 slurm", text, flags=re.M))


def ignore_dhcp_name(tree: Path) -> None:
    """Ignore the host name of DHCP, which would start a service at each boot.

    cloud-init and joining set the host name. The path is of the network that cloud-init's netplan
    writes.
    """
    path = _SYSTEMD / "network" / "10-netplan-eth0.network.d" / "slurm-elastic.conf"
    rooted.write(tree, str(path), "[DHCPv4]\nUseHostname=false\n")


def run_first_boot_work(tree: Path) -> None:
    """Do what systemd would do at the first boot for the packages and the site's additions."""
    for name, table in _GENERATORS.items():
        link = rooted.entry(tree, _generator(name))
        if table and rooted.target(tree, f"etc/{table}").exists() and link.is_symlink():
            link.unlink()
    apt.in_tree(tree, "systemd-sysusers")
    for place in ("etc", "var"):  # newer than /usr: see ConditionNeedsUpdate in systemd.unit(5)
        rooted.write(tree, f"{place}/.updated", "")
