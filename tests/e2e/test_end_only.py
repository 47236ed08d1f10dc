"""A disk that is full for a while and a ledger that is damaged once, on real Slurm: machines end,
nothing is bought meanwhile, jobs run on, and all is as before without anybody's help.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from slurm_elastic.sandbox.cluster import Sandbox
from slurm_elastic.state.heartbeat import read_mark
from tests.e2e.crash import FULL
from tests.e2e.world import (
    Until,
    back_to_zero,
    cloud_nodes,
    live_machines,
    machines,
    queued,
    running_nodes,
)

pytestmark = pytest.mark.e2e
PATIENCE = 240.0


@contextmanager
def small_disk(path: Path) -> Iterator[None]:
    """The directory on a disk of its own, which is small enough to fill."""
    before = path.stat()
    kept = path.with_name("state.kept")
    shutil.copytree(path, kept, ignore=shutil.ignore_patterns("*.sock"))
    options = f"size=12m,mode=0700,uid={before.st_uid},gid={before.st_gid}"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(path)], check=True)
    try:
        for found in kept.rglob("*"):
            new = path / found.relative_to(kept)
            new.mkdir() if found.is_dir() else shutil.copy2(found, new)
            os.chown(new, before.st_uid, before.st_gid)
        yield
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


@pytest.fixture
def site(sandbox: Callable[..., Sandbox]) -> Iterator[Sandbox]:
    made = sandbox(
        static_nodes=1, drop=("onprem",), suspend_time=5.0, suspend_timeout=5.0,
        resume_timeout=300.0, elastic={"timings": {"orphan_timeout": 10.0, "reconcile_interval": 5.0}},
    )  # fmt: skip
    made.daemon_stop()
    made.ckptman_stop()
    with small_disk(made.layout.dir / "state"):
        made.daemon_start()
        made.ckptman_start()
        yield made
        made.ckptman_stop()
        made.daemon_stop()


def fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x" * 4096)


def end_only(site: Sandbox) -> str:
    mark = read_mark(site.layout.dir / "state")
    return mark.why if mark else ""


def ever(site: Sandbox) -> set[str]:
    return {m.id for m in site.ec2.state().machines}


@pytest.mark.release
def test_a_full_disk_and_a_damaged_ledger_cost_no_machine_and_no_job(site: Sandbox) -> None:
    state = site.layout.dir / "state"
    first, second = Until(site), Until(site)
    short = site.submit(first.script, FULL, "--partition=aws")
    long = site.submit(second.script, FULL, "--time=60", "--partition=aws")
    nodes = running_nodes(site, [short, long])
    kept = next(m.id for m in live_machines(site) if m.node == nodes[long][0])
    bought = ever(site)

    fill(state / "filler")
    site.wait_for(lambda: "is full" in end_only(site), PATIENCE, "the daemon notices")
    first.go()
    site.wait_job(short)
    other = next(n for n in sorted(cloud_nodes(site)) if n not in nodes[short] + nodes[long])
    waits = site.submit("sleep 5", FULL, "--partition=aws", f"--nodelist={other}")
    site.wait_for(lambda: [m.id for m in live_machines(site)] == [kept], PATIENCE, "one ends")
    assert ever(site) == bought, "nothing is bought"
    (state / "filler").unlink()
    site.wait_for(lambda: not end_only(site), PATIENCE, "it comes back by itself")
    site.wait_job(waits, timeout=600)

    damage(state / "ledger.db")
    site.wait_for(lambda: list(state.glob("ledger.db.damaged-*")), PATIENCE, "it is set aside")
    site.wait_for(lambda: not end_only(site), PATIENCE, "there is a new one")
    job = queued(site, long)
    assert job is not None
    assert job.restarts == 0
    second.go()
    fields = site.wait_job(long)
    assert fields["Restarts"] == "0", "it has run on its one machine all the time"
    last = site.submit("sleep 5", FULL, "--partition=aws")
    site.wait_job(last, timeout=600)
    back_to_zero(site)
    booked = {m.instance.id: m for m in machines(site, ended=True)}
    assert all(m.has_ended for m in booked.values())
    assert kept in booked


def damage(path: Path) -> None:
    """Every page of the file and what is written beside it, in place."""
    for name in (path, path.with_name(f"{path.name}-wal")):
        if name.exists():
            size = name.stat().st_size
            with name.open("r+b") as file:
                file.write(os.urandom(size))
