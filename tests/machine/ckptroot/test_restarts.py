"""A job's output over several runs, some of them on nodes where its images cannot be restored."""

from __future__ import annotations

import json
import os
import random
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from slurm_elastic.machine.ckptroot import instructions, log
from slurm_elastic.machine.ckptroot import manifest as manifests
from slurm_elastic.machine.ckptroot.caller import Caller
from slurm_elastic.machine.ckptroot.manifest import ImageManifest
from slurm_elastic.machine.ckptroot.method import Method
from slurm_elastic.machine.ckptroot.quota import JobQuota
from slurm_elastic.machine.ckptroot.run import Run
from slurm_elastic.machine.ckptroot.session import Session
from slurm_elastic.machine.ckptroot.site import Amount, HelperSite, RequestRefused
from slurm_elastic.machine.ckptroot.store import HeadRequest, JobStore, Meta

from .helpers import ROOT

pytestmark = ROOT
USER = 65534
CALLER = Caller(job=7, uid=USER, gid=USER, user="nobody", groups=(USER,), environment={})


class Node(Method):
    """A method whose restores fail for the images in ``bad``; it says what it did."""

    name, pid, stands_still = "criu", 1000, True

    def __init__(self, *bad: int) -> None:
        self.bad, self.done = bad, ""

    def start(self) -> None:
        self.done = "anew"

    def restore(self, image: Path, manifest: ImageManifest) -> None:
        if manifest.number in self.bad:
            raise RequestRefused("criu restore: exit 1")
        self.done = f"from {manifest.number}"

    def estimate_size(self) -> int:
        return 6

    def dump(self, image: Path, within: float, most: int, closes: bool, /) -> dict[str, int]:
        (image / "pages").write_bytes(b"memory")
        return {}

    def gather(self, image: Path, most: int, /) -> None:
        """All is there."""

    def resume(self) -> None:
        """Nothing was stopped."""

    def versions(self) -> dict[str, str]:
        return {}


class Job:
    """A job with one output, over its runs; slurmstepd empties that at each."""

    def __init__(self, directory: Path) -> None:
        (directory / "shared").mkdir(mode=0o755)
        (directory / "home").mkdir()
        os.chown(directory / "home", USER, USER)
        self.site = HelperSite(
            cluster="t", directory=directory / "shared", key=b"k" * 64, reader=(0, 0)
        )
        self.store = JobStore(self.site, 7)
        self.store.open()
        self.out = directory / "home" / "out"
        self.meta = Meta(7, "7", USER, USER, "criu", [str(self.out)])
        self.store.claim(0)
        self.store.begin(self.meta, b"#!/bin/sh\n")
        self.attempt = -1

    def run(self, *bad: int) -> str:
        """The next run on a node that cannot restore the images ``bad``; what it began with."""
        self.out.write_bytes(b"")
        os.chown(self.out, USER, USER)
        self.attempt += 1
        self.store.claim(self.attempt)
        # So many nodes could not use the newest image that an older one is used, or none.
        self.store.tried_nodes(["n7", "n8", "n9"])
        node: Any = Node(*bad)
        self.of = Run(self.site, CALLER, self.attempt, self.store, self.meta, node)
        relay: Any = SimpleNamespace(terminated=False, wake_sudo=lambda *_: None)
        self.session = Session(self.of, relay)
        self.session.begin()
        return str(node.done)

    def writes(self, text: bytes) -> None:
        with self.out.open("ab") as file:
            file.write(text)

    def save(self) -> None:
        self.session.carry_out(HeadRequest("a", "checkpoint", within=60.0))

    def promised(self) -> int:
        """Bytes, to its next save."""
        parts = json.loads((self.site.jobs / "quota" / str(USER)).read_text())
        return int(parts["7"][1])


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    monkeypatch.setattr(log, "write", lambda *_: None)
    monkeypatch.setattr(instructions, "CPUINFO", Path("/none"))
    path = Path(tempfile.mkdtemp(prefix="se-restarts-", dir="/tmp"))
    path.chmod(0o755)
    made = Job(path)
    yield made
    made.store.close()
    shutil.rmtree(path)


def test_an_image_outlives_a_run_that_began_anew_in_vain(job: Job) -> None:
    assert job.run() == "anew"
    job.writes(b"one\n")
    job.save()
    assert job.run(1) == "anew"
    assert job.out.read_bytes() == b""
    job.writes(b"NEW\n")
    assert job.run() == "from 1"
    assert job.out.read_bytes() == b"one\n"


def test_a_newer_image_outlives_a_run_that_went_on_from_an_older_one(job: Job) -> None:
    job.run()
    for line in (b"one\n", b"two\n"):
        job.writes(line)
        job.save()
    assert job.run(2) == "from 1"
    assert job.out.read_bytes() == b"one\n"
    assert job.run() == "from 2"
    assert job.out.read_bytes() == b"one\ntwo\n"


@pytest.mark.parametrize(("bad", "begun"), [((2,), "from 1"), ((1, 2), "anew")])
def test_nothing_of_a_lost_run_comes_back(job: Job, bad: tuple[int, ...], begun: str) -> None:
    """The next images of a run that did not begin with the newest hold that run's bytes alone."""
    job.run()
    for line in (b"one\n", b"OLD 2\nOLD 3\n"):
        job.writes(line)
        job.save()
    assert job.run(*bad) == begun
    expected = job.out.read_bytes()
    for number, line in enumerate((b"new 2\n", b"new 3 and more\n", b"new 4\n"), start=3):
        job.writes(line)
        job.save()
        expected += line
        assert (job.of.copies / "0").read_bytes() == expected
        assert job.run() == f"from {number}"
        assert job.out.read_bytes() == expected


def test_nor_after_a_save_that_failed_half_way(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    job.run()
    for line in (b"one\n", b"OLD 2\n"):
        job.writes(line)
        job.save()
    assert job.run(2) == "from 1"
    job.writes(b"new 2\n")
    with monkeypatch.context() as full:
        full.setattr(manifests, "digests", refuse)
        with pytest.raises(RequestRefused, match="no space"):
            job.save()
    job.writes(b"new 3\n")
    job.save()
    assert job.run() == "from 3"
    assert job.out.read_bytes() == b"one\nnew 2\nnew 3\n"


def refuse(*_: object) -> None:
    raise OSError("no space")


def test_room_for_the_next_save_is_promised_at_the_start_or_said_to_be_missing(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(job.store, "add_log_line", said.append)
    total = os.statvfs(job.store.path)
    size = total.f_blocks * total.f_frsize
    job.run()
    monkeypatch.setattr(Node, "estimate_size", lambda _: size)
    for _ in range(2):
        job.session.look_ahead()
    (line,) = said
    assert line.startswith("its next save could not be made now: no room: ")
    monkeypatch.setattr(Node, "estimate_size", lambda _: 3 << 20)
    job.session.look_ahead()
    assert said[1:] == ["3 MiB are promised to its next save"]
    assert job.promised() == 3 << 20


def test_room_for_the_next_save_is_at_least_that_of_the_last_image(job: Job) -> None:
    job.run()
    job.save()
    job.session.look_ahead()
    assert job.promised() == len(b"memory")


def test_no_room_is_promised_for_the_holes_of_the_last_image(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dump(_: Node, image: Path, within: float, most: int, __: bool) -> dict[str, int]:
        (image / "pages").touch()
        os.truncate(image / "pages", 64 << 20)
        return {}

    job.run()
    monkeypatch.setattr(Node, "dump", dump)
    job.save()
    job.session.look_ahead()
    assert job.promised() < 1 << 20


def test_an_image_that_became_larger_than_there_is_room_for_does_not_stay(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CRIU is never ended in the middle: what it took is looked at afterwards."""

    def dump(_: Node, image: Path, within: float, most: int, __: bool) -> dict[str, int]:
        (image / "pages").write_bytes(b"x" * (1 << 20))
        return {}

    job.run()
    monkeypatch.setattr(Node, "dump", dump)
    site = replace(job.site, job_quota=Amount("512K", size=1 << 19))
    job.of.quota = JobQuota(site, 7, USER, job.store.path)
    with pytest.raises(RequestRefused, match="job_quota = 512K"):
        job.save()
    assert list((job.store.path / "images").iterdir()) == []


def test_a_failed_save_of_a_restarted_run_leaves_the_image_good(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.run()
    job.writes(b"a week of output\n")
    job.save()
    assert job.run(1) == "anew"
    job.writes(b"NEW\n")
    with monkeypatch.context() as full:
        full.setattr(manifests, "digests", refuse)
        with pytest.raises(RequestRefused, match="no space"):
            job.save()
    assert job.run() == "from 1"
    assert job.out.read_bytes() == b"a week of output\n"
    assert not list(job.store.path.glob("keep-*")), "copies without an image only take room"


def test_the_image_of_more_work_stays_until_the_new_images_have_as_much(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    worked = 1000.0
    monkeypatch.setattr(Run, "work_done", lambda _: worked)
    job.run()
    job.writes(b"a week of output\n")
    job.save()
    assert job.run(1) == "anew"
    worked = 10.0
    for line in (b"1\n", b"2\n", b"3\n"):
        job.writes(line)
        job.save()
    assert [path.name for path in job.store.images()] == ["4", "3", "1"]
    assert job.run(3, 4) == "from 1"
    assert job.out.read_bytes() == b"a week of output\n"
    assert job.run(2) == "from 4"
    assert job.out.read_bytes() == b"1\n2\n3\n"
    worked = 2000.0
    job.save()
    assert [path.name for path in job.store.images()] == ["5", "4"]
    assert [path.name for path in job.store.path.glob("keep*")] == ["keep-2"]


@pytest.mark.parametrize("seed", range(12))
def test_each_run_has_the_output_of_the_image_from_which_it_continues(
    job: Job, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Over nodes that cannot use some images, and saves that fail."""
    chance = random.Random(seed)
    expected = {0: b""}
    job.run()
    for _ in range(12):
        for _ in range(chance.randrange(4)):
            job.writes(b"%d\n" % chance.randrange(10**9))
            with monkeypatch.context() as full:
                if fails := chance.random() < 0.3:
                    full.setattr(manifests, "digests", refuse)
                    with pytest.raises(RequestRefused, match="no space"):
                        job.save()
            if not fails:
                job.save()
                newest = int(job.store.images()[0].name)
                expected[newest] = job.out.read_bytes()
        job.writes(b"lost\n" * chance.randrange(2))
        present = [int(path.name) for path in job.store.images()]
        bad = [number for number in present if chance.random() < 0.4]
        good = next((number for number in present if number not in bad), 0)
        assert job.run(*bad) == (f"from {good}" if good else "anew")
        assert job.out.read_bytes() == expected[good]
