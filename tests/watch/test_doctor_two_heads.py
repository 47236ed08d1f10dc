"""Doctor looks at both heads from either of them."""

from __future__ import annotations

import contextlib
import os
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import status_cases
from msgspec.structs import replace

from slurm_elastic.cli.operate import doctor
from slurm_elastic.config import Config, HaSettings
from slurm_elastic.config.sections.joining import Ssh
from slurm_elastic.model.finding import Finding, FindingLevel
from slurm_elastic.state.heads import Epochs
from slurm_elastic.state.heartbeat import CKPTMAN, DAEMON
from slurm_elastic.state.presence import Presence, write_presence
from slurm_elastic.watch.doctor import two_heads
from slurm_elastic.watch.door.acting_head import read_head
from slurm_elastic.watch.view import Facts, status_view
from slurm_elastic.watch.view.attention import attention
from slurm_elastic.watch.view.rows import AttentionLevel as Loudness


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    """Of a, the first one of a and b; a acts."""
    uname = os.uname()
    here = os.uname_result((uname.sysname, "a.site", *uname[2:]))
    monkeypatch.setattr(os, "uname", lambda: here)
    conf, shared = tmp_path / "slurm.conf", tmp_path / "shared"
    conf.write_text(f"SlurmctldHost=a\nSlurmctldHost=b\nStateSaveLocation={tmp_path}\n")
    (tmp_path / "heartbeat").write_bytes(struct.pack(">QQ", int(time.time()), 0))
    shared.mkdir()
    Epochs(shared).take("a.site")
    made = status_cases.config(tmp_path)
    slurm = replace(made.slurm, conf=str(conf))
    return replace(made, slurm=slurm, ha=HaSettings(directory=str(shared)))


def tells(site: Config, host: str, **changes: object) -> None:
    """Have both services of the host tell of themselves."""
    one = Presence(host=host, at=time.time(), config="c", version="1")
    for service in (DAEMON, CKPTMAN):
        write_presence(Path(str(site.ha.directory)), service, replace(one, **changes))


def look(config: Config) -> list[Finding]:
    return list(two_heads.examine(config, time.time()))


def wrong(config: Config) -> list[str]:
    return [f"{f.subject}: {f.observed}" for f in look(config) if f.level is FindingLevel.WRONG]


def test_one_head_is_not_looked_at(config: Config) -> None:
    assert look(replace(config, ha=HaSettings())) == []


def test_two_that_are_alike(config: Config) -> None:
    tells(config, "a.site")
    tells(config, "b")
    assert wrong(config) == []
    assert look(config)[0].observed == "a acts, epoch 1"


def test_services_that_do_not_follow_slurm(config: Config) -> None:
    tells(config, "a.site")
    tells(config, "b")
    directory = Path(str(config.ha.directory))
    Epochs(directory).take("b")
    (finding,) = [one for one in look(config) if one.level is FindingLevel.WRONG]
    assert finding.observed == "Slurm acts on a, and epoch 2 is of b"
    restart = "on a: systemctl restart slurm-elasticd slurm-elastic-ckptman"
    assert finding.advice == restart
    head = read_head(config, directory, time.time())
    assert head.told == (
        "Head: Slurm acts on a, and no service has taken over there: epoch 2 is of b"
    )
    facts = Facts(now=time.time(), head=head)
    (told,) = [one for one in attention(status_view(config, facts)) if "Slurm acts" in one.text]
    assert (told.level, told.do) == (Loudness.LOUD, f"if this lasts for a minute, {restart}")
    Epochs(directory).take("a.site")
    assert read_head(config, directory, time.time()).told == "Head: a acts, this one, epoch 3"


def test_a_directory_that_others_may_write_is_reported(config: Config) -> None:
    tells(config, "a.site")
    tells(config, "b")
    directory = Path(str(config.ha.directory))
    directory.chmod(0o777)
    (finding,) = [one for one in look(config) if one.level is FindingLevel.WRONG]
    assert finding.subject == f"ha.directory {directory}"
    assert finding.observed == f"{directory} may be written by others (mode 0777)"
    assert finding.advice == f"chmod go-w {directory}"


def test_services_that_run_on_one_alone(config: Config) -> None:
    tells(config, "a.site")
    never = "on b: it has never run there"
    assert wrong(config) == [f"{DAEMON} {never}", f"{CKPTMAN} {never}"]
    tells(config, "b", at=time.time() - 3600)
    assert wrong(config)[0] == f"{DAEMON} on b: no sign of life for 1h"


def test_heads_that_would_not_go_on_alike(config: Config) -> None:
    tells(config, "a.site")
    tells(config, "b", config="other", version="2", at=time.time() + 30)
    told = "\n".join(wrong(config))
    assert f"{DAEMON} on a.site and b: their configurations differ" in told
    assert f"{DAEMON}: 1 on a.site, 2 on b" in told
    assert "clocks of a.site and b: 30 s apart" in told


def test_hubs_with_two_keys(config: Config) -> None:
    tells(config, "a.site", tunnel="one")
    for key in ("another", ""):
        tells(config, "b", tunnel=key)
        found = "the keys on the two heads differ, or one head has no key"
        assert wrong(config) == [f"slurm-elastic-hub on a.site and b: {found}"] * 2


def test_two_heads_that_would_bring_different_keys_to_machines(config: Config) -> None:
    ssh = Ssh(key="/etc/slurm/id", munge_key="/etc/slurm-elastic/munge.key")
    config = replace(config, join=replace(config.join, ssh=ssh))
    tells(config, "a.site", secret="old")
    tells(config, "b", secret="old")
    assert wrong(config) == []
    tells(config, "b", secret="new")
    assert wrong(config) == [f"{ssh.munge_key} on a.site and b: the files differ"]
    tells(config, "b", secret="")
    unread = f"{ssh.munge_key} on a.site and b: slurm-elasticd cannot read it on b"
    assert wrong(config) == [unread]
    tells(config, "b", secret=None)  # of an earlier release
    assert wrong(config) == []


def test_a_directory_that_is_not_there(config: Config) -> None:
    ha = HaSettings(directory=f"{config.ha.directory}/none")
    (finding,) = look(replace(config, ha=ha))
    assert finding.level is FindingLevel.WRONG
    assert "No such file" in finding.observed


def test_a_host_that_is_no_head(config: Config) -> None:
    conf = Path(config.slurm.conf)
    conf.write_text(conf.read_text().replace("SlurmctldHost=a", "SlurmctldHost=c"))
    (finding,) = look(config)
    assert "only heads of Slurm can act" in finding.observed


def test_a_disk_that_is_slow(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    tells(config, "a.site")
    tells(config, "b")
    monkeypatch.setattr(two_heads, "_write_time", lambda _: 0.2)
    (slow,) = [f for f in look(config) if f.level is FindingLevel.NOTE]
    assert slow.observed == "200 ms until a write is on its disk"


@pytest.mark.parametrize(
    ("a", "b", "found", "level"),
    [
        ("10.0.0.1", "10.0.0.1", "10.0.0.1, the address of a, too", FindingLevel.WRONG),
        ("10.0.0.1", "127.0.1.1", "127.0.1.1, which is each host itself", FindingLevel.NOTE),
        ("10.0.0.1", "::1", "::1, which is each host itself", FindingLevel.NOTE),
    ],
)
def test_an_address_at_which_nobody_reaches_the_other_head(
    config: Config, a: str, b: str, found: str, level: FindingLevel
) -> None:
    tells(config, "a.site")
    tells(config, "b")
    conf = Path(config.slurm.conf)
    text = conf.read_text().replace("Host=a", f"Host=a({a})").replace("Host=b", f"Host=b({b})")
    conf.write_text(text)
    (finding,) = [f for f in look(config) if f.level is not FindingLevel.OK]
    assert (finding.subject, finding.observed) == (f"{conf}:2: SlurmctldHost b", found)
    assert finding.level is level


def test_a_mount_by_which_the_heads_may_not_see_each_other(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    tells(config, "a.site")
    tells(config, "b")
    line = f"30 1 0:40 / {config.ha.directory} rw - nfs4 server:/x rw,vers=4.2,hard,OPTION"
    root = "1 1 8:1 / / rw - ext4 /dev/sda1 rw\n"

    def mounted(option: str) -> list[str]:
        told = root + line.replace("OPTION", option)
        monkeypatch.setattr(two_heads.mounts, "mounts", lambda: told)
        return wrong(config)

    assert mounted("proto=tcp") == []
    (found,) = mounted("nocto")
    assert "mounted with nocto: a head may not see for a minute" in found
    (found,) = mounted("soft")
    assert "makes writes fail" in found
    line = line.replace("nfs4", "ext4")
    assert mounted("nocto") == [], "no NFS"


def test_doctor_looks_at_them_as_slurm_user_and_not_for_users(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_whom: list[str] = []

    @contextlib.contextmanager
    def acting_as(user: str) -> Iterator[None]:
        as_whom.append(user)
        yield

    monkeypatch.setattr(doctor, "acting_as", acting_as)
    monkeypatch.setattr(doctor, "_is_closed", lambda _: False)
    assert doctor._both_heads(config, time.time())
    assert as_whom == [config.slurm.user]
    monkeypatch.setattr(doctor, "_is_closed", lambda _: True)
    assert doctor._both_heads(config, time.time()) == ()
