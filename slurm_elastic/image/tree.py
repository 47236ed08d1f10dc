"""The tree of an image: Debian with Slurm's part for nodes, the site's additions, and no secret.

Nothing in it is of one machine (``cleaning``): host keys, machine id and host name are made at the
first boot.
slurmd and munged are not enabled: they would start without a configuration and without a key, and
the boot would wait for them. Joining (programs/join.sh) starts both.
"""

from __future__ import annotations

import grp
import os
import pwd
import shlex
from pathlib import Path, PurePosixPath

from slurm_elastic.base.errors import ConfigError, SlurmElasticError
from slurm_elastic.image import apt, rooted
from slurm_elastic.image.cleaning import clean
from slurm_elastic.image.commands import require, run
from slurm_elastic.image.recipe import LOGIN, Recipe, packages
from slurm_elastic.machine.ckptroot.bundle import build as build_root_part
from slurm_elastic.slurm.hooks.launcher import PROGRAM as ROOT_PART

_SYSTEMD = PurePosixPath("etc/systemd")
_SYSCTLS = b"""\
kernel.yama.ptrace_scope = 0
net.ipv4.ip_nonlocal_bind = 1
-kernel.io_uring_disabled = 2
"""
"""For CRIU, which restores as the job's user; sockets bound to another node's address; and node.js,
which does without io_uring where there is none; the minus is for kernels before 6.6 (sysctl.d(5)).
"""
# Jobs may start the program that saves them; see etc/sudoers.d-slurm-elastic.
_SUDOERS = f"""\
Cmnd_Alias SLURM_ELASTIC_CKPT = {ROOT_PART} ready *, {ROOT_PART} run *
Defaults!SLURM_ELASTIC_CKPT env_reset, !requiretty, !use_pty, !pam_session, rlimit_core=user
ALL ALL=(root) NOPASSWD: SLURM_ELASTIC_CKPT
"""


# A machine generates no locale and no RSA key, which takes its processor long, and keeps the apt
# sources that it has. A locale that is no text is an error to cloud-init 22.4, of bookworm.
_CLOUD_INIT = """\
locale: "no"
ssh_genkeytypes: [ed25519, ecdsa]
apt: {preserve_sources_list: true}
"""


_NEEDLESS = ("apt-daily.timer", "apt-daily-upgrade.timer", "dpkg-db-backup.timer",
             "e2scrub_all.timer", "modprobe@drm.service", "systemd-pstore.service",
             "systemd-repart.service")  # fmt: skip
"""Units of systemd that only take a compute node's time: it is replaced, not upgraded, and has no
screen.
"""
_GENERATORS = {
    "gpt-auto": "", "hibernate-resume": "", "run": "", "system-update": "",
    "cryptsetup": "crypttab", "integritysetup": "integritytab", "veritysetup": "veritytab",
}  # fmt: skip
"""Generators of systemd without which a node boots, unless /etc has the table that one reads; see
systemd.generator(7).
"""
_COLDPLUG = "systemd-udev-trigger.service"
_PLUGGED = """\
# At boot udev goes through all devices, drivers and modules. Only devices have rules; of them these
# need none, nor a driver, and a large machine has thousands. Virtual consoles are left out, too.
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
# The root is ext4 on a disk of the machine: other file systems, and what reaches one by a network,
# would only be unpacked at each boot. The network cards of virtual machines stay: programs/again.sh
# knows the machine by them before udev has looked for anything. See initramfs-tools(7).
[ "$1" != prereqs ] || exit 0
cd "$DESTDIR/lib/modules/$version/kernel" || exit 0
rm -rf drivers/infiniband drivers/md drivers/block/drbd drivers/block/rbd.ko* \\
  net/ceph net/sunrpc fs/btrfs fs/f2fs fs/jfs fs/lockd fs/netfs fs/nfs fs/nfs_common \\
  fs/reiserfs fs/xfs
[ ! -d drivers/net ] || find drivers/net -name '*.ko*' ! -name 'virtio_net.ko*' \\
  ! -name 'net_failover.ko*' ! -name 'ena.ko*' ! -name 'gve.ko*' ! -name 'hv_netvsc.ko*' \\
  ! -name 'xen-netfront.ko*' ! -name 'vmxnet3.ko*' ! -name 'ixgbevf.ko*' ! -name 'e1000*.ko*' \\
  ! -name '8139cp.ko*' ! -name 'mii.ko*' -delete
# udev looks for the disk here; for all else once the root is there.
udev=$DESTDIR/scripts/init-top/udev
[ ! -e "$udev" ] || sed -i '/udevadm trigger .*--type=devices/s/$/ @WITHOUT@/' "$udev"
"""


def make(recipe: Recipe, tree: Path, debian: str, slurm: str | None, *, booted: bool) -> str:
    """The whole tree in the new directory ``tree``; the release of Slurm that it has (24.11.5).

    SlurmElasticError where that is not a ``slurm`` (24.11).
    """
    wanted = packages(recipe, debian, booted=booted)
    hook = tree.with_name("initrd")
    hook.write_text(_INITRD.replace("@WITHOUT@", _WITHOUT), encoding="utf-8")
    first = f'install -D -m 755 {shlex.quote(str(hook))} "$1{_INITRD_HOOK}"' if booted else ""
    apt.bootstrap(debian, tree, wanted, recipe.sources, first)
    found = slurm_in(tree)
    if slurm is not None and not found.startswith(f"{slurm}."):
        raise SlurmElasticError(
            f"Debian {debian} has Slurm {found or 'none'}, the head {slurm}: name another release "
            "of Debian in the recipe (debian:), or a source of packages of that release (sources:)"
        )
    lay_over(recipe, tree)
    copy_users(recipe.users, tree)
    if booted:
        mask(tree)
        plug_less(tree)
        name_once(tree)
        add_login(tree)
    if recipe.criu:
        _add_root_part(tree)
    for command in recipe.run:
        apt.in_tree(tree, command)
    if recipe.ansible:
        words = ["ansible-playbook", "-c", "community.general.chroot", "-i", f"{tree},"]
        run([*words, recipe.ansible], HOME="/root")
    if booted:
        settle(tree)
    clean(recipe, tree)
    return found


def slurm_in(tree: Path) -> str:
    """The release of the tree's slurmd: Debian's package, or SchedMD's."""
    return apt.version_in(tree, "slurmd") or apt.version_in(tree, "slurm-smd-slurmd")


def check_files(recipe: Recipe) -> None:
    """ConfigError for a file, directory or user of the recipe that this host lacks."""
    problems = []
    for key in ("files", "ansible", "cloud_init", "munge_key"):
        path = getattr(recipe, key)
        if path is None:
            continue
        there = Path(path).is_dir() if key == "files" else Path(path).is_file()
        if not there:
            kind = "directory" if key == "files" else "file"
            problems.append(f"{key}: found {path!r}, expected a {kind} of this host")
    for at, name in enumerate(recipe.users):
        try:
            pwd.getpwnam(name)
        except KeyError:
            problems.append(f"users[{at}]: found {name!r}, expected a user of this host")
    if problems:
        raise ConfigError(*problems)
    if recipe.ansible:
        require({"ansible-playbook": "ansible"})


def lay_over(recipe: Recipe, tree: Path) -> None:
    if recipe.files:
        # A link that is there is replaced, and nothing is written to where it leads.
        words = ["cp", "-a", "--no-preserve=ownership", "--remove-destination"]
        run([*words, f"{recipe.files}/.", tree])
    settings = "etc/cloud/cloud.cfg.d"
    rooted.write(tree, f"{settings}/80_slurm-elastic.cfg", _CLOUD_INIT)
    if recipe.cloud_init:
        rooted.write(tree, f"{settings}/95_site.cfg", Path(recipe.cloud_init).read_bytes())
    if recipe.mounts:
        rooted.write(tree, "etc/fstab", "".join(f"{line}\n" for line in recipe.mounts))
        for line in recipe.mounts:
            rooted.target(tree, line.split()[1]).mkdir(parents=True, exist_ok=True)


def mask(tree: Path) -> None:
    """The site's own file of such a name stays, and its ``run`` may unmask the unit."""
    places = [_SYSTEMD / "system" / unit for unit in _NEEDLESS]
    places += [_generator(name) for name in _GENERATORS]
    for place in (rooted.entry(tree, path) for path in places):
        place.parent.mkdir(parents=True, exist_ok=True)
        if not os.path.lexists(place):
            place.symlink_to("/dev/null")


def _generator(name: str) -> PurePosixPath:
    return _SYSTEMD / "system-generators" / f"systemd-{name}-generator"


def plug_less(tree: Path) -> None:
    """The release's own line, with less for it to do."""
    unit = rooted.target(tree, f"usr/lib/systemd/system/{_COLDPLUG}")
    lines = [x for x in unit.read_text(encoding="utf-8").splitlines() if "udevadm trigger" in x]
    if len(lines) != 1:  # a release that does it otherwise does all of it
        return
    line = lines[0].removeprefix("ExecStart=").replace("--type=all", "--type=devices")
    terminals = "--sysname-match=tty[A-Z]* --sysname-match=[!t]*"
    text = _PLUGGED.format(line=line, without=_WITHOUT, terminals=terminals)
    rooted.write(tree, f"{_SYSTEMD}/system/{_COLDPLUG}.d/slurm-elastic.conf", text)


def copy_users(names: tuple[str, ...], tree: Path) -> None:
    """Their lines of passwd, and their groups with them as members; nobody gets a password."""
    for name in names:
        one = pwd.getpwnam(name)
        own = grp.getgrgid(one.pw_gid)
        groups = [own, *(g for g in grp.getgrall() if name in g.gr_mem)]
        for group in groups:
            _merge_group(tree, group.gr_name, group.gr_gid, name if group is not own else "")
        words = (name, "x", one.pw_uid, one.pw_gid, one.pw_gecos, one.pw_dir, one.pw_shell)
        passwd, shadow = (rooted.target(tree, f"etc/{file}") for file in ("passwd", "shadow"))
        if _add_line(passwd, ":".join(map(str, words)), str(one.pw_uid)):
            _add_line(shadow, f"{name}:!*:19000:0:99999:7:::", "")


def add_login(tree: Path) -> None:
    """The user of the cloud's key pair, before cloud-init makes one."""
    known = rooted.target(tree, "etc/passwd").read_text(encoding="utf-8").splitlines()
    if not any(line.startswith(f"{LOGIN}:") for line in known):
        # /home may be the site's own homes, where its keys would belong to whoever has that number
        # there, who could then be root.
        home = f"--create-home --home-dir /var/lib/{LOGIN}"
        apt.in_tree(tree, f"useradd --system --user-group {home} --shell /bin/bash {LOGIN}")


def _merge_group(tree: Path, name: str, number: int, member: str) -> None:
    path = rooted.target(tree, "etc/group")
    _add_line(path, f"{name}:x:{number}:", str(number))
    if not member:
        return
    lines = path.read_text(encoding="utf-8").splitlines()
    for at, line in enumerate(lines):
        words = line.split(":")
        if words[0] == name:
            words[3] = ",".join(dict.fromkeys([*filter(None, words[3].split(",")), member]))
            lines[at] = ":".join(words)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def _add_line(path: Path, line: str, number: str) -> bool:
    """Whether it was added; it is there already where the name has that number."""
    name = line.split(":")[0]
    for known in path.read_text(encoding="utf-8").splitlines():
        words = known.split(":")
        if words[0] == name:
            if number and words[2] != number:
                raise SlurmElasticError(
                    f"{name} has the number {number} on this host and {words[2]} in the image"
                )
            return False
        if number and words[2:3] == [number]:
            raise SlurmElasticError(
                f"{name} has the number {number} on this host, which is that of {words[0]} in the "
                "image"
            )
    with path.open("a", encoding="utf-8") as file:
        file.write(f"{line}\n")
    return True


def _add_root_part(tree: Path) -> None:
    for place, text, mode in (
        (ROOT_PART, build_root_part(), 0o755),
        ("/etc/sudoers.d/slurm-elastic", _SUDOERS.encode(), 0o440),
        ("/etc/sysctl.d/60-slurm-elastic.conf", _SYSCTLS, 0o644),
    ):
        rooted.write(tree, place, text, mode)


def name_once(tree: Path) -> None:
    """Its host name is told by cloud-init and by joining; DHCP's has a service start at each boot.
    The network is as cloud-init has netplan write it.
    """
    place = _SYSTEMD / "network" / "10-netplan-eth0.network.d" / "slurm-elastic.conf"
    rooted.write(tree, str(place), "[DHCPv4]\nUseHostname=false\n")


def settle(tree: Path) -> None:
    """Does what a first boot would do for the packages and the site's additions."""
    for name, table in _GENERATORS.items():
        link = rooted.entry(tree, _generator(name))
        if table and rooted.target(tree, f"etc/{table}").exists() and link.is_symlink():
            link.unlink()
    apt.in_tree(tree, "systemd-sysusers")
    for place in ("etc", "var"):  # later than /usr: see ConditionNeedsUpdate in systemd.unit(5)
        rooted.write(tree, f"{place}/.updated", "")
