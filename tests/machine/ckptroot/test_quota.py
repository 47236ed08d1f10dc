"""Root's image storage: what a job and its user may have of it."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from slurm_elastic.machine.ckptroot import quota as quotas
from slurm_elastic.machine.ckptroot.quota import JobQuota, Room, allocated
from slurm_elastic.machine.ckptroot.site import Amount, HelperSite, RequestRefused

from .helpers import ROOT

pytestmark = ROOT
MIB = 1 << 20
ALICE, BOB = 2000, 2001


@pytest.fixture
def site() -> Iterator[HelperSite]:
    home = Path(tempfile.mkdtemp(prefix="se-quota-", dir="/tmp"))
    (home / "t").mkdir()
    yield HelperSite(
        cluster="t", directory=home, key=b"k" * 64, reader=(0, 0),
        job_quota=Amount("10M", size=10 * MIB), user_quota=Amount("15M", size=15 * MIB),
        keep_free=Amount("1M", size=MIB),
    )  # fmt: skip
    shutil.rmtree(home)


def job(site: HelperSite, number: int, size: int = 0, uid: int = ALICE) -> JobQuota:
    """One that has that many bytes."""
    images = site.jobs / str(number) / "images" / "1"
    images.mkdir(parents=True)
    (images / "pages-1.img").write_bytes(b"x" * size)
    return JobQuota(site, number, uid, site.jobs / str(number))


def test_a_job_has_its_own_limit(site: HelperSite) -> None:
    one = job(site, 1, 6 * MIB)
    assert 3 * MIB < one.room(3 * MIB).size < 4 * MIB
    said = "no room: 4 MiB needed, 3 MiB left by job_quota = 10M, the job has 6 MiB"
    with pytest.raises(RequestRefused, match=f"^{said}$"):
        one.room(4 * MIB)


def test_all_jobs_of_a_user_have_one_limit_and_others_theirs(site: HelperSite) -> None:
    one, two, other = job(site, 1, 8 * MIB), job(site, 2), job(site, 3, uid=BOB)
    one.settle()
    assert two.room(6 * MIB).size < 7 * MIB
    with pytest.raises(RequestRefused, match="user_quota = 15M, jobs of uid 2000 have 8 MiB"):
        two.room(8 * MIB)
    assert other.room(9 * MIB).size > 9 * MIB


def test_what_is_promised_to_a_save_is_no_others(site: HelperSite) -> None:
    one, two = job(site, 1), job(site, 2)
    one.room(9 * MIB)
    with pytest.raises(
        RequestRefused, match=r"user_quota = 15M, .* 9 MiB are promised to other saves"
    ):
        two.room(9 * MIB)
    two.room(5 * MIB)
    assert one.room(9 * MIB).size >= 9 * MIB  # its own
    one.settle()
    with pytest.raises(RequestRefused, match="promised"):
        two.room(9 * MIB)
    one.forget()
    two.room(9 * MIB)


def test_what_is_promised_to_one_user_is_no_other_users(
    site: HelperSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file system has 20 MiB left, of which 1 stays free."""
    there = SimpleNamespace(f_blocks=100, f_frsize=MIB, f_bavail=20)
    monkeypatch.setattr(quotas.os, "statvfs", lambda path: there)
    one, other = job(site, 1), job(site, 2, uid=BOB)
    other.room(9 * MIB)
    other.room(10 * MIB - 65536)
    with pytest.raises(RequestRefused, match=r"keep_free = 1M .* 9 MiB promised to other saves"):
        one.room(10 * MIB - 65536)
    one.room(8 * MIB)


def test_a_refused_promise_leaves_the_one_before(site: HelperSite) -> None:
    one, two = job(site, 1), job(site, 2)
    one.room(8 * MIB)
    with pytest.raises(RequestRefused):
        one.room(11 * MIB)
    with pytest.raises(RequestRefused, match="8 MiB are promised"):
        two.room(9 * MIB)


def test_the_sweeper_takes_back_what_was_promised_to_jobs_that_are_gone(site: HelperSite) -> None:
    one, other = job(site, 1), job(site, 2, uid=BOB)
    one.room(9 * MIB)
    other.room(MIB)
    shutil.rmtree(site.jobs / "1")
    assert other._strangers() == 9 * MIB
    quotas.tidy(site)
    assert other._strangers() == 0
    assert one._strangers() == MIB


def test_what_grew_beyond_is_refused_afterwards(site: HelperSite) -> None:
    one = job(site, 1)
    one.room(MIB)
    (site.jobs / "1" / "images" / "1" / "more").write_bytes(b"x" * 11 * MIB)
    with pytest.raises(RequestRefused, match="job_quota"):
        one.settle()


def test_jobs_that_are_gone_do_not_count(site: HelperSite) -> None:
    one, two = job(site, 1, 8 * MIB), job(site, 2)
    one.settle()
    shutil.rmtree(site.jobs / "1")
    two.room(9 * MIB)


def test_a_number_that_was_given_to_another_user_is_not_counted_for_the_first(
    site: HelperSite,
) -> None:
    one, two = job(site, 1, 8 * MIB), job(site, 2)
    one.settle()
    one.forget()
    two.room(9 * MIB)


def test_some_of_the_file_system_stays_free(site: HelperSite) -> None:
    there = os.statvfs(site.jobs)
    size = there.f_blocks * there.f_frsize
    full = replace(site, keep_free=Amount("100%", share=1.0), job_quota=Amount("all", size=size))
    with pytest.raises(RequestRefused, match="keep_free = 100%"):
        job(full, 1).room(MIB)


def test_holes_take_nothing(site: HelperSite) -> None:
    one = job(site, 1, MIB)
    os.truncate(site.jobs / "1" / "images" / "1" / "pages-1.img", 1 << 40)
    assert allocated(site.jobs / "1") < 2 * MIB
    one.settle()


def test_a_link_takes_its_own_room_alone(site: HelperSite) -> None:
    job(site, 1)
    (site.directory / "elsewhere").write_bytes(b"x" * MIB)
    (site.jobs / "1" / "images" / "1" / "link").symlink_to(site.directory / "elsewhere")
    assert allocated(site.jobs / "1") < MIB


def test_a_file_of_what_they_have_that_cannot_be_read_is_said(site: HelperSite) -> None:
    one = job(site, 1)
    one.settle()
    (site.jobs / "quota" / str(ALICE)).write_text("{")
    with pytest.raises(RequestRefused, match="cannot be read"):
        one.room(0)


def test_one_save_looks_at_a_time_and_none_for_ever(
    site: HelperSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = job(site, 1)
    one.settle()
    monkeypatch.setattr(quotas, "LOCK_TIMEOUT_S", 0.1)
    with open(site.jobs / "quota" / f"{ALICE}.lock", "rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(RequestRefused, match="busy"):
            one.room(0)
    one.room(0)


def test_users_who_ask_at_once_are_promised_no_more_than_there_is(site: HelperSite) -> None:
    """As when a cloud takes many machines away at a time."""
    there = os.statvfs(site.jobs)
    free = there.f_bavail * there.f_frsize
    site = replace(
        site, keep_free=Amount("a quarter", size=free // 4),
        job_quota=Amount("all", size=free), user_quota=Amount("all", size=free),
    )  # fmt: skip
    for turn in range(5):
        jobs = [job(site, 10 * turn + n + 1, uid=ALICE + 10 * turn + n) for n in range(6)]
        together = threading.Barrier(len(jobs))

        def asks(one: JobQuota, together: threading.Barrier = together) -> bool:
            together.wait(60)
            try:
                one.room(free // 2)
            except RequestRefused:
                return False
            return True

        with ThreadPoolExecutor(len(jobs)) as threads:
            assert sum(threads.map(asks, jobs)) <= 1
        for one in jobs:
            one.forget()


def test_a_promise_that_takes_long_costs_nobody_a_save(
    site: HelperSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quotas, "TURN_TIMEOUT_S", 0.1)
    one, other = job(site, 1), job(site, 2, uid=BOB)
    one.settle()
    with open(site.jobs / "quota" / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert other.room(MIB).size > MIB


# bounds


def test_room_is_enough_up_to_its_last_byte() -> None:
    room = Room(3 * MIB, "job_quota = 10M")
    room.check(3 * MIB)
    with pytest.raises(
        RequestRefused, match=r"^no room: 3 MiB needed, 3 MiB left by job_quota = 10M$"
    ):
        room.check(3 * MIB + 1)
    with pytest.raises(RequestRefused, match="1 MiB needed, 0 MiB left"):
        Room(-5 * MIB, "job_quota = 10M").check(MIB)


def test_the_limit_that_leaves_the_least_is_the_room(
    site: HelperSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file system has 100 MiB, 20 of them free."""
    there = SimpleNamespace(f_blocks=100, f_frsize=MIB, f_bavail=20)
    monkeypatch.setattr(quotas.os, "statvfs", lambda path: there)
    monkeypatch.setattr(quotas, "allocated", lambda path: 2 * MIB)
    one, two = job(site, 1), job(site, 2)
    two.room(MIB)
    assert one.room(0) == Room(8 * MIB, "job_quota = 10M, the job has 2 MiB")
    shares = {"job_quota": Amount("80%", share=0.8), "user_quota": Amount("50%", share=0.5)}
    one.site = replace(site, **shares)  # type: ignore[arg-type]
    found = one.room(0)
    assert found.size == (20 - 1 - 1) * MIB
    assert found.limit == (
        f"keep_free = 1M of {site.jobs}, 20 MiB are free, 1 MiB promised to other saves"
    )
    there.f_bavail = 90
    found = one.room(0)
    assert found.size == (50 - 2 - 2 - 1) * MIB
    assert found.limit == (
        "user_quota = 50%, jobs of uid 2000 have 4 MiB, 1 MiB are promised to other saves of theirs"
    )


def test_what_was_found_at_a_refusal_counts_for_the_others(site: HelperSite) -> None:
    one, two = job(site, 1, 9 * MIB), job(site, 2)
    with pytest.raises(RequestRefused):
        one.room(5 * MIB)
    with pytest.raises(RequestRefused, match="jobs of uid 2000 have 9 MiB"):
        two.room(8 * MIB)


def test_a_jobs_directory_is_counted_three_levels_deep(site: HelperSite) -> None:
    """Job, images, image: deeper than that nothing of root's is."""
    top = site.jobs / "9"
    deep = top / "images" / "1" / "x"
    deep.mkdir(parents=True)
    (top / "images" / "1" / "pages").write_bytes(b"x" * MIB)
    before = allocated(top)
    assert before >= MIB
    (deep / "pages").write_bytes(b"x" * MIB)
    assert allocated(top) == before
    sizes = [path.lstat().st_blocks * 512 for path in (top / "images", deep.parent, deep)]
    assert before == sum(sizes) + (top / "images" / "1" / "pages").stat().st_blocks * 512


def test_what_vanishes_while_it_is_counted_counts_nothing(
    site: HelperSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Entry:
        name = "gone"

        def stat(self, *, follow_symlinks: bool) -> os.stat_result:
            raise FileNotFoundError

    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(quotas.os, "scandir", lambda place: nullcontext([Entry()]))
        assert allocated(site.jobs) == 0


def test_what_they_have_is_roots_and_nobody_elses_to_say(site: HelperSite) -> None:
    one = job(site, 1)
    one.settle()
    file = site.jobs / "quota" / str(ALICE)
    assert file.stat().st_mode & 0o777 == 0o600
    assert (site.jobs / "quota").stat().st_mode & 0o777 == 0o700
    os.chown(file, ALICE, ALICE)
    with pytest.raises(RequestRefused, match="belongs to uid 2000"):
        one.room(0)
    file.unlink()
    os.truncate(_made(file), (16 << 20) + 1)
    with pytest.raises(RequestRefused, match="more than 16777216"):
        one.room(0)


def _made(file: Path) -> Path:
    file.touch()
    return file


def test_nothing_is_left_open_or_locked(site: HelperSite) -> None:
    one = job(site, 1)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(2):
        one.room(MIB)
        one.settle()
        with pytest.raises(RequestRefused):
            one.room(11 * MIB)
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(("patience", "tries"), [(10.0, 12), (2.0, 4)])
def test_a_lock_is_waited_for_as_long_as_told(
    site: HelperSite, monkeypatch: pytest.MonkeyPatch, patience: float, tries: int
) -> None:
    clock, tried = [0.0], []

    def busy(lock: int, how: int) -> None:
        tried.append(clock[0])
        raise BlockingIOError

    monkeypatch.setattr(quotas.fcntl, "flock", busy)
    sleep = SimpleNamespace(
        monotonic=lambda: clock[0], sleep=lambda _: clock.append(clock.pop() + 1.0)
    )
    monkeypatch.setattr(quotas, "time", sleep)
    with pytest.raises(RequestRefused, match=f"^/x: busy for {patience:.0f} s$"):
        quotas._take(0, Path("/x"), patience)
    assert len(tried) == tries
