"""The parts of an image that are files: users, additions, and what is of one machine."""

from __future__ import annotations

import grp
import os
import pwd
from pathlib import Path

import pytest
import yaml
from needs import ROOT

from slurm_elastic.base.errors import ConfigError, SlurmElasticError
from slurm_elastic.image import apt, cleaning, disk, tree
from slurm_elastic.image.recipe import Recipe

REPOSITORY = Path(__file__).parents[2]
PASSWD = "root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534::/nonexistent:/bin/sh\n"
GROUP = "root:x:0:\nadm:x:4:\nnogroup:x:65534:\n"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    etc = tmp_path / "root" / "etc"
    etc.mkdir(parents=True)
    for name, text in (("passwd", PASSWD), ("group", GROUP), ("shadow", "root:*:1::::::\n")):
        (etc / name).write_text(text)
    return tmp_path / "root"


@pytest.fixture
def alice(monkeypatch: pytest.MonkeyPatch) -> None:
    one = pwd.struct_passwd(("alice", "$6$hash", 1234, 1234, "Alice", "/home/alice", "/bin/bash"))
    own = grp.struct_group(("alice", "x", 1234, []))
    lab = grp.struct_group(("lab", "x", 2000, ["alice", "carol"]))
    monkeypatch.setattr(pwd, "getpwnam", lambda name: {"alice": one}[name])
    monkeypatch.setattr(grp, "getgrgid", lambda number: {1234: own}[number])
    monkeypatch.setattr(grp, "getgrall", lambda: [own, lab])


@pytest.mark.usefixtures("alice")
def test_a_user_comes_with_groups_and_without_a_password(place: Path) -> None:
    tree.copy_users(("alice", "alice"), place)
    assert (place / "etc/passwd").read_text() == (
        PASSWD + "alice:x:1234:1234:Alice:/home/alice:/bin/bash\n"
    )
    assert (place / "etc/group").read_text() == GROUP + "alice:x:1234:\nlab:x:2000:alice\n"
    assert (place / "etc/shadow").read_text().splitlines()[1].startswith("alice:!*:")
    assert "hash" not in (place / "etc/shadow").read_text()


@pytest.mark.usefixtures("alice")
def test_a_user_whose_number_differs_in_the_image_is_refused(place: Path) -> None:
    with (place / "etc/passwd").open("a") as file:
        file.write("alice:x:999:999::/:/bin/sh\n")
    with pytest.raises(SlurmElasticError, match="1234 on this host and 999 in the image"):
        tree.copy_users(("alice",), place)


@pytest.mark.usefixtures("alice")
@pytest.mark.parametrize(
    ("file", "line", "whose"),
    [
        ("passwd", "munge:x:1234:110::/:/bin/false\n", "alice has the number 1234 .* munge has it"),
        ("group", "sudoers:x:2000:\n", "lab has the number 2000 .* sudoers has it"),
    ],
)
def test_a_number_that_somebody_else_has_in_the_image_is_refused(
    place: Path, file: str, line: str, whose: str
) -> None:
    with (place / "etc" / file).open("a") as there:
        there.write(line)
    with pytest.raises(SlurmElasticError, match=whose):
        tree.copy_users(("alice",), place)


def test_units_without_use_on_a_node_are_masked_but_not_the_sites_own(place: Path) -> None:
    units = place / "etc/systemd/system"
    units.mkdir(parents=True)
    (units / "apt-daily.timer").write_text("the site's")
    tree.mask(place)
    tree.mask(place)
    assert (units / "apt-daily.timer").read_text() == "the site's"
    assert (units / "apt-daily-upgrade.timer").readlink() == Path("/dev/null")


def _settled(place: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    asked: list[str] = []
    monkeypatch.setattr(apt, "in_tree", lambda _, command: asked.append(command))
    for name in ("etc", "var"):
        (place / name).mkdir(exist_ok=True)
    tree.run_first_boot_work(place)
    return asked


def test_generators_without_use_are_masked_unless_the_site_has_their_table(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "etc/systemd/system").mkdir(parents=True)
    tree.mask(place)
    (place / "etc/crypttab").write_text("scratch /dev/vdb /dev/urandom\n")
    _settled(place, monkeypatch)
    masked = {one.name for one in (place / "etc/systemd/system-generators").iterdir()}
    assert "systemd-cryptsetup-generator" not in masked
    assert {"systemd-gpt-auto-generator", "systemd-veritysetup-generator"} <= masked


def test_the_sites_users_are_made_in_the_image_and_not_looked_for_at_each_boot(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _settled(place, monkeypatch) == ["systemd-sysusers"]
    assert (place / "etc/.updated").is_file()
    assert (place / "var/.updated").is_file()


def test_no_locale_is_generated_and_bookworms_cloud_init_takes_it_for_valid(place: Path) -> None:
    """By its schema a locale is a text; these are the texts that mean none."""
    tree.lay_over(Recipe(), place)
    told = yaml.safe_load((place / "etc/cloud/cloud.cfg.d/80_slurm-elastic.cfg").read_text())
    assert told["locale"] in ("off", "0", "no", "false")


def test_udev_goes_through_fewer_devices_by_the_releases_own_line(place: Path) -> None:
    unit = place / "usr/lib/systemd/system/systemd-udev-trigger.service"
    unit.parent.mkdir(parents=True)
    unit.write_text("[Service]\nExecStart=-udevadm trigger --type=all --action=add --new=option\n")
    tree.limit_coldplug(place)
    text = (place / "etc/systemd/system" / f"{unit.name}.d/slurm-elastic.conf").read_text()
    first, second = (x for x in text.splitlines() if x.startswith("ExecStart=-"))
    assert first.startswith("ExecStart=-udevadm trigger --type=devices --action=add --new=option ")
    assert "--subsystem-nomatch=tty " in first
    assert "--subsystem-match=tty" in second


def test_udev_goes_through_all_devices_of_a_release_that_does_it_otherwise(place: Path) -> None:
    unit = place / "usr/lib/systemd/system/systemd-udev-trigger.service"
    unit.parent.mkdir(parents=True)
    unit.write_text("[Service]\nExecStart=udevadm trigger a\nExecStart=udevadm trigger b\n")
    tree.limit_coldplug(place)
    assert not (place / "etc/systemd/system" / f"{unit.name}.d").exists()


def test_the_login_is_a_user_of_the_system_whose_home_is_not_below_home(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """/home may be the site's own homes, in which others could have its number."""
    asked: list[str] = []
    monkeypatch.setattr(apt, "in_tree", lambda _, command: asked.append(command))
    tree.add_login(place)
    assert [words.split()[:2] for words in asked] == [["useradd", "--system"]]
    assert "--home-dir /var/lib/debian" in asked[0]


def test_a_login_that_the_site_has_itself_stays(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (place / "etc/passwd").open("a") as file:
        file.write("debian:x:1000:1000::/home/debian:/bin/bash\n")
    monkeypatch.setattr(apt, "in_tree", lambda *_: pytest.fail("nothing is to be added"))
    tree.add_login(place)


def test_nothing_of_one_machine_stays_and_slurmd_is_not_enabled(place: Path) -> None:
    gone = (
        "etc/ssh/ssh_host_ed25519_key", "etc/ssh/ssh_host_ed25519_key.pub", "etc/munge/munge.key",
        "var/lib/systemd/random-seed", "var/lib/cloud/instances/i-1/user-data.txt",
        "etc/systemd/system/multi-user.target.wants/slurmd.service",
        "etc/systemd/system/multi-user.target.wants/munge.service",
    )  # fmt: skip
    for name in (*gone, "etc/ssh/sshd_config", "etc/machine-id", "var/log/dpkg.log"):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text("x")
    cleaning.clean(Recipe(), place)
    assert [name for name in gone if (place / name).exists()] == []
    assert (place / "etc/ssh/sshd_config").exists()
    assert (place / "etc/machine-id").read_text() == ""


@pytest.mark.parametrize("lvm", ["", "sbin/lvm", "usr/sbin/lvm"])
def test_snapshots_of_lvm_are_looked_for_at_boots_where_there_is_lvm(place: Path, lvm: str) -> None:
    link = place / "etc/systemd/system/default.target.wants/e2scrub_reap.service"
    for name in filter(None, (link, place / lvm if lvm else None)):
        name.parent.mkdir(parents=True, exist_ok=True)
        name.write_text("")
    cleaning.clean(Recipe(), place)
    assert link.exists() is bool(lvm)


def test_mounts_have_their_places_and_files_lie_over_what_was_there(
    place: Path, tmp_path: Path
) -> None:
    files = tmp_path / "files"
    (files / "etc").mkdir(parents=True)
    (files / "etc" / "passwd").write_text(PASSWD)
    (files / "etc" / "motd").write_text("hello\n")
    recipe = Recipe(files=str(files), mounts=("head:/home /data/home nfs defaults 0 0",))
    tree.lay_over(recipe, place)
    assert (place / "etc/motd").read_text() == "hello\n"
    assert (place / "data/home").is_dir()
    assert (place / "etc/fstab").read_text() == "head:/home /data/home nfs defaults 0 0\n"


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A directory of the host, to which an image's absolute links lead."""
    made = tmp_path / "elsewhere"
    (made / "apt").mkdir(parents=True)
    for name in (
        "dpkg.log",
        "apt/term.log",
        "file",
        "passwd",
        "slurmd.service",
        "ssh_host_rsa_key",
    ):
        (made / name).write_text("the host's\n")
    return made


def untouched(place: Path) -> bool:
    texts = {path.read_text() for path in place.rglob("*") if path.is_file()}
    return len(list(place.rglob("*"))) == 7 and texts == {"the host's\n"}


def test_nothing_of_the_host_is_removed_or_written_where_an_images_links_lead(
    place: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(apt, "in_tree", lambda *_: None)
    (tmp_path / "key").write_text("k" * 128)
    directories = (
        "var/log", "etc/ssh", "etc/munge", "var/lib/cloud", "var/cache/apt", "var/lib/apt/lists",
        "etc/systemd/system/multi-user.target.wants", "boot/grub", "etc/cloud/cloud.cfg.d",
        "etc/systemd/network", "etc/systemd/system-generators", "data",
    )  # fmt: skip
    files = ("etc/machine-id", "etc/fstab", "etc/resolv.conf", "etc/.updated", "var/.updated")
    for name in (*directories, *files):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).symlink_to(elsewhere / "file" if name in files else elsewhere)
    recipe = Recipe(mounts=("h:/ /data/home nfs 0",), munge_key=str(tmp_path / "key"))
    tree.lay_over(recipe, place)
    tree.mask(place)
    tree.ignore_dhcp_name(place)
    tree.run_first_boot_work(place)
    cleaning.clean(recipe, place)
    monkeypatch.setattr(disk, "grub_core", lambda _: pytest.fail("the disk follows"))
    with pytest.raises(pytest.fail.Exception, match="the disk follows"):
        disk.write_raw(place, tmp_path / "disk", 64)
    assert untouched(elsewhere)
    own = place / str(elsewhere).lstrip("/")
    assert (own / "grub.cfg").is_file(), "on a machine of the image the link leads there"


def test_slurm_resolves_names_of_nodes_where_a_package_can(place: Path) -> None:
    switch = place / "etc/nsswitch.conf"
    switch.parent.mkdir(exist_ok=True)
    switch.write_text("passwd: files\nhosts:          files myhostname dns\n")
    tree.name_nodes(place)
    assert "slurm" not in switch.read_text()
    library = place / "usr/lib/x86_64-linux-gnu/libnss_slurm.so.2"
    library.parent.mkdir(parents=True)
    library.touch()
    for _ in range(2):
        tree.name_nodes(place)
        assert switch.read_text() == ("passwd: files\nhosts:          files slurm myhostname dns\n")


def test_users_are_added_to_the_images_own_passwd(
    place: Path, elsewhere: Path, alice: None
) -> None:
    inner = place / str(elsewhere).lstrip("/")
    inner.mkdir(parents=True)
    (place / "etc/passwd").rename(inner / "passwd")
    (place / "etc/passwd").symlink_to(elsewhere / "passwd")
    tree.copy_users(("alice",), place)
    assert untouched(elsewhere)
    assert "alice:x:1234" in (inner / "passwd").read_text()


def test_files_laid_over_replace_links_and_are_not_written_where_these_lead(
    place: Path, elsewhere: Path, tmp_path: Path
) -> None:
    """As with /etc/localtime and all that /etc/alternatives is about."""
    (place / "etc/localtime").symlink_to(elsewhere / "file")
    (tmp_path / "files/etc").mkdir(parents=True)
    (tmp_path / "files/etc/localtime").write_text("the site's")
    tree.lay_over(Recipe(files=str(tmp_path / "files")), place)
    assert untouched(elsewhere)
    assert (place / "etc/localtime").read_text() == "the site's"
    assert not (place / "etc/localtime").is_symlink()


@ROOT
def test_files_laid_over_are_roots(place: Path, tmp_path: Path) -> None:
    files = tmp_path / "files"
    files.mkdir()
    (files / "program").write_text("")
    os.chown(files / "program", 65534, 65534)
    (files / "program").chmod(0o750)
    tree.lay_over(Recipe(files=str(files)), place)
    found = (place / "program").stat()
    assert (found.st_uid, found.st_mode & 0o777) == (0, 0o750)


def test_what_this_host_lacks_is_told_before_anything_is_made(tmp_path: Path) -> None:
    recipe = Recipe(files=str(tmp_path / "no"), cloud_init="/no/file", users=("no-such-user",))
    with pytest.raises(ConfigError) as caught:
        tree.check_files(recipe)
    assert [text.partition(":")[0] for text in caught.value.problems] == [
        "files", "cloud_init", "users[0]",
    ]  # fmt: skip


def test_nodes_of_an_image_allow_jobs_the_same_commands_as_nodes_set_up_by_hand(
    tmp_path: Path,
) -> None:
    tree._add_root_part(tmp_path)
    by_hand = (REPOSITORY / "etc" / "sudoers.d-slurm-elastic").read_text()
    in_image = (tmp_path / "etc" / "sudoers.d" / "slurm-elastic").read_text()
    assert _rules(in_image) == _rules(by_hand)


def _rules(sudoers: str) -> list[str]:
    """The rules without comments and the way they are broken into lines."""
    joined = sudoers.replace("\\\n", " ").splitlines()
    return [" ".join(line.split()) for line in joined if not line.startswith("#")]
