"""A service of two heads stands by, serves and stands by again, as Slurm says."""

from __future__ import annotations

import contextlib
import os
import shutil
import struct
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from patience import eventually

from slurm_elastic.base.errors import ConfigError, PassingError
from slurm_elastic.base.processes import asking
from slurm_elastic.cli.services import ckptman, daemon, standby
from slurm_elastic.cli.services.standby import head_of
from slurm_elastic.config import Config
from slurm_elastic.config.configfile import parse
from slurm_elastic.config.sections.joining import Network, Ssh
from slurm_elastic.state.heads import Epochs, SupersededError
from slurm_elastic.state.heartbeat import DAEMON, MARK, read_mark
from slurm_elastic.state.ledger.schema import LEDGER
from slurm_elastic.state.presence import read_presences
from slurm_elastic.state.store import disk


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Of a head named b, the second one of a and b."""
    uname = os.uname()
    here = os.uname_result((uname.sysname, "b", *uname[2:]))
    monkeypatch.setattr(os, "uname", lambda: here)
    monkeypatch.setattr(standby, "CHECK_EVERY_S", 0.02)
    monkeypatch.setattr(standby, "_BEAT_EVERY_S", 0.1)
    monkeypatch.setattr(asking, "_gate", None)
    conf = tmp_path / "slurm.conf"
    conf.write_text(
        f"SlurmctldHost=a\nSlurmctldHost=b\nStateSaveLocation={tmp_path}\nSlurmctldTimeout=30\n"
    )
    (tmp_path / "state").mkdir()
    return CONFIG(tmp_path)


def says(place: int, root: Path) -> None:
    """Have Slurm say who acts."""
    draft = root / "heartbeat.new"
    draft.write_bytes(struct.pack(">QQ", int(time.time()), place))
    draft.replace(root / "heartbeat")


def CONFIG(root: Path, **ha: object) -> Config:  # noqa: N802 - reads as a value
    text = f"""
cluster: {{name: c, uuid: 7d1f0c52-4d8e-4f5b-9a3e-0f6c1f5f0a11}}
state_dir: {root}/state
slurm: {{conf: {root}/slurm.conf}}
clouds: [{{name: here, provider: local, location: on-premises, socket: {root}/sock}}]
pools: [{{name: p, cloud: here, nodes: "n[1-2]", cpus: 1, memory: 1000, slurmd_port: 7000}}]
"""
    directory = ha.get("directory", f"{root}/shared")
    return parse(
        text + (f"ha: {{directory: {directory}}}\n" if directory else ""), str(root / "c.yaml")
    )


def test_one_head_has_nothing_of_it(tmp_path: Path) -> None:
    assert head_of(CONFIG(tmp_path, directory=None), DAEMON, MARK) is None


def test_links_that_are_left_are_told_of(config: Config, tmp_path: Path) -> None:
    assert head_of(config, DAEMON, MARK) is not None
    with pytest.raises(ConfigError, match="two heads shared"):
        head_of(CONFIG(tmp_path, directory=None), DAEMON, MARK)


def test_a_directory_that_is_away_passes(tmp_path: Path, config: Config) -> None:
    del config
    (tmp_path / "file").write_text("")
    with pytest.raises(PassingError, match=r"ha\.directory: .* cannot be used"):
        head_of(CONFIG(tmp_path, directory=f"{tmp_path}/file/x"), DAEMON, MARK)


def test_a_missing_slurm_conf_is_a_passing_error(config: Config, tmp_path: Path) -> None:
    (tmp_path / "slurm.conf").unlink()
    with pytest.raises(PassingError, match=r"cannot read .*slurm\.conf"):
        head_of(config, DAEMON, MARK)


def test_a_head_that_is_no_controller_is_an_error(config: Config, tmp_path: Path) -> None:
    (tmp_path / "slurm.conf").write_text("SlurmctldHost=a\nSlurmctldHost=d\n")
    with pytest.raises(ConfigError, match="this host is b"):
        head_of(config, DAEMON, MARK)


def test_no_service_starts_where_it_would_not_see_who_acts(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = (
        f"1 1 8:1 / / rw - ext4 /dev/sda1 rw\n30 1 0:40 / {config.ha.directory} rw - nfs4 s:/x rw"
    )
    monkeypatch.setattr(standby.mounts, "mounts", lambda: f"{line},hard")
    assert head_of(config, DAEMON, MARK) is not None
    monkeypatch.setattr(standby.mounts, "mounts", lambda: f"{line},hard,nocto")
    with pytest.raises(ConfigError, match=r"ha\.directory: .* is mounted with nocto"):
        head_of(config, DAEMON, MARK)


def test_it_stands_by_until_slurm_says_so(config: Config, tmp_path: Path) -> None:
    says(0, tmp_path)
    (tmp_path / "shared").mkdir()
    Epochs(tmp_path / "shared").take("a")
    head: Any = head_of(config, DAEMON, MARK)
    ended, begun = threading.Event(), threading.Event()
    thread = threading.Thread(target=lambda: begun.set() if head.begins(ended) else None)
    thread.start()
    mark: Any = eventually(lambda: read_mark(config.state))
    assert str(mark.trouble).startswith("a acts (epoch 1 of a); since ")
    assert "this head stands by" in str(mark.trouble)
    assert not mark.acts
    eventually(lambda: not acts_as_told(tmp_path))
    assert not begun.is_set()
    says(1, tmp_path)
    assert begun.wait(20)
    thread.join()
    assert head.epoch == 2
    assert 100 < head.unsettled <= 120
    head.require()
    with head.watched(lambda: None):
        eventually(lambda: acts_as_told(tmp_path))


def acts_as_told(tmp_path: Path) -> bool:
    return read_presences(tmp_path / "shared", DAEMON)["b"].presence.acts


def test_it_tells_the_other_head_which_key_its_hub_has(config: Config, tmp_path: Path) -> None:
    place = tmp_path / "wireguard.pub"
    network = Network(endpoint="192.0.2.1:51820", public_key=str(place))
    tunnelled = replace(config, join=replace(config.join, network=network))
    head: Any = acting(tunnelled, tmp_path)

    def tells() -> str:
        seen = read_presences(tmp_path / "shared", DAEMON)
        return seen["b"].presence.tunnel if seen else "nothing"

    with head.watched(lambda: None):
        eventually(lambda: tells() == "")
        place.write_text("one\n")
        eventually(lambda: tells() == "one")
        place.unlink()
        place.mkdir()  # it cannot be read, and the head lives
        eventually(lambda: tells() == "")


def test_the_other_head_can_compare_the_secret_and_does_not_learn_it(
    config: Config, tmp_path: Path
) -> None:
    key = tmp_path / "munge.key"
    ssh = Ssh(key="/etc/slurm/id", munge_key=str(key))
    head: Any = acting(replace(config, join=replace(config.join, ssh=ssh)), tmp_path)

    def digest() -> str | None:
        seen = read_presences(tmp_path / "shared", DAEMON)
        return seen["b"].presence.secret if seen else None

    with head.watched(lambda: None):
        eventually(lambda: digest() == "")
        key.write_bytes(b"one" * 20)
        eventually(lambda: digest() not in ("", None))
        before = digest()
        assert "one" not in str(before)
        key.write_bytes(b"two" * 20)
        eventually(lambda: digest() not in ("", before))


def test_a_service_that_is_to_end_does_not_wait(config: Config, tmp_path: Path) -> None:
    says(0, tmp_path)
    head: Any = head_of(config, DAEMON, MARK)
    ended = threading.Event()
    ended.set()
    assert head.begins(ended) is False


def acting(config: Config, root: Path) -> Any:
    says(1, root)
    head: Any = head_of(config, DAEMON, MARK)
    assert head.begins(threading.Event())
    return head


def test_it_is_told_once_that_slurm_has_taken_over_elsewhere(
    config: Config, tmp_path: Path
) -> None:
    head, lost = acting(config, tmp_path), []
    with head.watched(lambda: lost.append(1)):
        says(0, tmp_path)
        eventually(lambda: lost)
    assert lost == [1]


@pytest.mark.parametrize("place", [2, 7, 2**64 - 1])
def test_a_place_that_slurm_conf_did_not_have_takes_the_head_away(
    config: Config, tmp_path: Path, place: int
) -> None:
    head, lost = acting(config, tmp_path), []
    with head.watched(lambda: lost.append(1)):
        says(place, tmp_path)
        eventually(lambda: lost)
    assert lost == [1]
    cause = f"SlurmctldHost line {place + 1} acts, but slurm.conf had 2 when this service started"
    assert head._reason_not_to_act() == f"{cause} (epoch 1 of b)"
    says(1, tmp_path)
    assert head._reason_not_to_act() == "", "the next heartbeat that is sound gives it back"


def test_a_watch_that_dies_ends_what_it_watches(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head, lost = acting(config, tmp_path), []

    def broken() -> None:
        raise IndexError("tuple index out of range")

    monkeypatch.setattr(head, "require", broken)
    with head.watched(lambda: lost.append(1)):
        eventually(lambda: lost)
    assert lost == [1]


def test_a_slurmctld_that_starts_again_takes_nothing_away(config: Config, tmp_path: Path) -> None:
    head, lost = acting(config, tmp_path), []
    (tmp_path / "heartbeat").unlink()
    with head.watched(lambda: lost.append(1)):
        time.sleep(0.2)
        head.require()
    assert lost == []


def test_an_empty_directory_in_the_place_of_the_shared_one_is_refused(
    config: Config, tmp_path: Path
) -> None:
    head, lost, shared = acting(config, tmp_path), [], tmp_path / "shared"
    with head.watched(lambda: lost.append(1)):
        shared.rename(tmp_path / "away")
        shared.mkdir()
        eventually(lambda: lost)
    why = head._reason_not_to_act()
    assert why.startswith(f"ha.directory: {shared} has no epoch, and this head has seen epoch 1")
    head._beaten = float("-inf")
    head._stand_by(why)
    mark: Any = read_mark(config.state)
    assert not mark.stands_by, "status and doctor show it"
    assert f"remove {config.state}/last-epoch on both heads" in str(mark.trouble)
    assert list(shared.glob("epoch-*")) == [], "it began none there"
    shutil.rmtree(shared)
    (tmp_path / "away").rename(shared)
    assert head._reason_not_to_act() == "", "it is back"
    assert head.epoch == 1


def test_an_older_copy_of_the_directory_is_refused_until_a_person_says_that_it_counts(
    config: Config, tmp_path: Path
) -> None:
    acting(config, tmp_path)
    shared, copy = tmp_path / "shared", tmp_path / "copy"
    shutil.copytree(shared, copy)
    Epochs(shared).take("a")
    assert acting(config, tmp_path).epoch == 3
    shutil.rmtree(shared)
    copy.rename(shared)
    head: Any = head_of(config, DAEMON, MARK)
    assert "ends with epoch 1, and this head has seen epoch 3" in head._reason_not_to_act()
    (config.state / "last-epoch").unlink()
    assert head._reason_not_to_act() == ""
    assert head.epoch == 1


def test_a_head_that_only_stands_by_knows_how_far_the_other_one_came(
    config: Config, tmp_path: Path
) -> None:
    says(0, tmp_path)
    head: Any = head_of(config, DAEMON, MARK)
    for host in ("a", "b", "a"):
        Epochs(tmp_path / "shared").take(host)
    assert head._reason_not_to_act() == "a acts (epoch 3 of a)"
    (tmp_path / "shared" / "epoch-000003").rename(tmp_path / "shared" / "epoch-000002")
    says(1, tmp_path)
    assert "ends with epoch 2, and this head has seen epoch 3" in head._reason_not_to_act()


def test_an_epoch_that_nobody_can_read_keeps_no_head_from_acting(
    config: Config, tmp_path: Path
) -> None:
    head = acting(config, tmp_path)
    (tmp_path / "shared" / "epoch-000001").write_bytes(b"")
    head.require()
    assert acting(config, tmp_path).epoch == 2


def test_no_service_starts_on_a_directory_that_others_may_write(
    config: Config, tmp_path: Path
) -> None:
    assert head_of(config, DAEMON, MARK) is not None
    shared = tmp_path / "shared"
    assert shared.stat().st_mode & 0o777 == 0o700
    shared.chmod(0o777)
    with pytest.raises(ConfigError, match=r"ha\.directory: .*shared may be written by others"):
        head_of(config, DAEMON, MARK)


def test_a_directory_that_went_as_a_service_starts_passes(config: Config, tmp_path: Path) -> None:
    assert head_of(config, DAEMON, MARK) is not None
    (tmp_path / "shared").rename(tmp_path / "away")
    with contextlib.ExitStack() as closing, pytest.raises(PassingError, match="cannot be used"):
        daemon._open(config.state, closing, shares=True)


def test_one_that_stood_still_may_nothing(config: Config, tmp_path: Path) -> None:
    head = acting(config, tmp_path)
    Epochs(tmp_path / "shared").take("a")
    with pytest.raises(SupersededError, match=r"a \(epoch 2\) acts, not b"):
        head.require()


def test_an_error_that_only_acting_meets_lets_the_service_try_again(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other head has begun a journal of a later release, and this one takes over from it."""
    made = replace(LEDGER, version=LEDGER.version + 1)
    head = head_of(config, DAEMON, MARK)
    assert head is not None
    says(1, tmp_path)
    assert head.begins(threading.Event())
    disk.Disk(tmp_path / "state/ledger.db", made).close()
    for name in os.listdir(tmp_path / "state"):
        if name.startswith("ledger.db"):
            (tmp_path / "state" / name).unlink()
    for service in (daemon, ckptman):
        monkeypatch.setattr(service, "on_stop", lambda _: None)
        with pytest.raises(PassingError, match=r"this head acts, and cannot serve yet: .*schema"):
            service._serve(config)


def test_a_service_that_starts_again_stays_in_its_epoch(config: Config, tmp_path: Path) -> None:
    first, second = acting(config, tmp_path), acting(config, tmp_path)
    assert first.epoch == second.epoch == 1


def test_nothing_ends_unasked_where_slurm_was_at_a_head_without_our_services(
    config: Config, tmp_path: Path
) -> None:
    head = acting(config, tmp_path)
    head._settles = time.monotonic() + 1.0
    assert head.begins(threading.Event()), "with another catalogue"
    assert head.unsettled <= 1.0
    says(0, tmp_path)
    begun = threading.Event()
    thread = threading.Thread(target=lambda: begun.set() if head.begins(threading.Event()) else 0)
    thread.start()
    eventually(lambda: "a acts" in str(head._reports.last_report("standing by")))
    says(1, tmp_path)
    assert begun.wait(20)
    thread.join()
    assert head.epoch == 1
    assert head.unsettled > 100


def test_nothing_ends_unasked_after_an_epoch_in_which_this_process_stood_still(
    config: Config, tmp_path: Path
) -> None:
    head = acting(config, tmp_path)
    head._settles = time.monotonic() + 1.0
    Epochs(tmp_path / "shared").take("a")
    assert head.begins(threading.Event())
    assert head.epoch == 3
    assert head.unsettled > 100
