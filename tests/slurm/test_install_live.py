"""Install and uninstall on a running site: its jobs, nodes and partitions do not notice."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_elastic.slurm.check import VOLATILE
from slurm_elastic.slurm.install import install
from slurm_elastic.slurm.uninstall import uninstall
from tests.slurm import site_cases
from tests.slurm.live_site import LiveSite, wait_for

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(
        not all(shutil.which(p, path="/usr/sbin:/usr/bin") for p in ("slurmctld", "slurmd")),
        reason="Slurm is not installed",
    ),
]


@pytest.fixture
def root() -> Iterator[Path]:
    # SlurmUser must get in, which pytest's own tmp_path does not allow.
    with tempfile.TemporaryDirectory(prefix="se-site-") as name:
        path = Path(name)
        path.chmod(0o755)
        yield path


def tree(directory: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in sorted(directory.rglob("*")) if p.is_file()}


def settled(view: dict[str, dict[str, str]]) -> dict[str, dict[str, str]]:
    return {
        name: {key: value for key, value in fields.items() if key not in VOLATILE}
        for name, fields in view.items()
    }


ACCOUNT = {"private": ("-A", "radiology")}


@pytest.mark.parametrize("name", site_cases.NAMES)
def test_a_job_runs_on_through_install_and_uninstall(name: str, root: Path) -> None:
    live = LiveSite(name, root)
    try:
        live.start()
        job = live.sbatch("-w", live.node, *ACCOUNT.get(name, ()))
        wait_for("the job to run", lambda: live.job(job)["JobState"] == "RUNNING")
        before, started = tree(live.conf.parent), live.job(job)["StartTime"]
        view = settled(live.view())
        config = live.config()

        done = install(config, live.config_path, restart=live.restart_command)
        assert not done.restart_needed
        assert "pub1" in live.run("scontrol", "-a", "show", "node", "pub1")
        _same(live, job, started, view)

        again = install(config, live.config_path, restart="/bin/false")
        assert again.changed == ()

        uninstall(config, live.config_path, restart=live.restart_command)
        assert tree(live.conf.parent) == before
        assert "not found" in live.run("scontrol", "show", "node", "pub1", check=False)
        _same(live, job, started, view)
    finally:
        live.stop()


def _same(live: LiveSite, job: int, started: str, view: dict[str, dict[str, str]]) -> None:
    wait_for("the node to be back", lambda: live.state(live.node) in ("mixed", "allocated"))
    found = live.job(job)
    assert (found["JobState"], found["StartTime"], found["Restarts"]) == ("RUNNING", started, "0")
    # Arch, OS and Version come with the node's own registration, some seconds later.
    wait_for("the node to register", lambda: "Arch" in live.view()[f"node {live.node}"])
    assert settled(live.view()) == view
