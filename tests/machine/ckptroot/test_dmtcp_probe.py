"""Whether DMTCP can save two hosts is tried once for each build; that it cannot, again later."""

from __future__ import annotations

import contextlib
import os
import pwd
import time
from pathlib import Path

import pytest

from slurm_elastic.machine.ckptroot import dmtcp_probe
from slurm_elastic.machine.ckptroot.site import HelperSite, RequestRefused

from .helpers import ROOT

pytestmark = ROOT
BUILD, OTHER = "a" * 64, "b" * 64


class Tries:
    """What a try finds out, and how many there were."""

    def __init__(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.site = HelperSite(cluster="t", directory=place, key=b"", reader=(0, 0))
        self.site.jobs.mkdir()
        self.answer, self.count = "", 0
        monkeypatch.setattr(dmtcp_probe, "_tried", self.tried)

    def tried(self, *_: object) -> str:
        self.count += 1
        return self.answer

    def check(self, build: str = BUILD) -> None:
        dmtcp_probe.check(self.site, build)


@pytest.fixture
def tries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tries:
    return Tries(tmp_path, monkeypatch)


def test_a_build_that_can_is_tried_once(tries: Tries) -> None:
    for _ in range(3):
        tries.check()
    assert tries.count == 1
    tries.check(OTHER)
    assert tries.count == 2


def test_a_build_that_cannot_is_refused_and_tried_again_an_hour_later(tries: Tries) -> None:
    tries.answer = f"{dmtcp_probe.LACKS}: a save of two hosts hangs"
    for _ in range(2):
        with pytest.raises(RequestRefused, match=r"DMTCP lacks a change .* two hosts hangs"):
            tries.check()
    assert tries.count == 1
    (record,) = tries.site.jobs.iterdir()
    assert record.stat().st_uid == 0
    before = time.time() - 3601
    os.utime(record, (before, before))
    tries.answer = ""
    tries.check()
    assert tries.count == 2


def test_a_users_answer_is_not_believed(tries: Tries) -> None:
    tries.check()
    (record,) = tries.site.jobs.iterdir()
    os.chown(record, 65534, 65534)
    tries.check()
    assert tries.count == 2


def test_the_two_processes_are_of_a_user_that_nobody_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job's user could end them, or write their files: all users' jobs believe the answer."""
    owners: list[int] = []

    class Probe:
        def __init__(self, _site: object, uid: int, place: Path, _hosts: object) -> None:
            owners.extend({uid, place.stat().st_uid, place.stat().st_gid})

        def answer(self) -> str:
            return ""

    monkeypatch.setattr(dmtcp_probe, "_two_hosts", contextlib.nullcontext)
    monkeypatch.setattr(dmtcp_probe, "_Probe", Probe)
    site = HelperSite(
        cluster="t", directory=tmp_path, key=b"", reader=(0, 0), scratch=tmp_path / "s"
    )
    site.jobs.mkdir()
    dmtcp_probe.check(site, BUILD)
    (uid,) = owners
    with pytest.raises(KeyError):
        pwd.getpwuid(uid)
    assert uid not in (0, 65534)
