"""Install and uninstall on a running site: its jobs, nodes and partitions do not notice."""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from needs import unless

from slurm_elastic.base.errors import ConfigError, SlurmElasticError
from slurm_elastic.slurm.client import controller
from slurm_elastic.slurm.client.release import release_of
from slurm_elastic.slurm.conf.check import VOLATILE
from slurm_elastic.slurm.conf.install import InstallResult, install
from slurm_elastic.slurm.conf.uninstall import uninstall
from tests.slurm import site_cases
from tests.slurm.live_site import LiveSite, wait_for

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(os.geteuid() != 0, reason="real daemons need root"),
    unless("slurmctld", "munged"),
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


@pytest.mark.parametrize("name", site_cases.in_tiers())
def test_a_job_runs_on_through_install_and_uninstall(name: str, root: Path) -> None:
    live = LiveSite(name, root)
    try:
        live.start()
        job = live.sbatch("-w", live.node)
        wait_for("the job to run", lambda: live.job(job)["JobState"] == "RUNNING")
        before, started = tree(live.conf.parent), live.job(job)["StartTime"]
        view = settled(live.view())
        config = live.config()

        done = install(config, live.config_path, restart=live.restart_command)
        assert not done.restart_needed
        assert "pub1" in live.run("scontrol", "-a", "show", "node", "pub1")
        _same(live, job, started, view)

        # slurmctld serves it, so there is nothing to restart for.
        again = install(config, live.config_path, restart="/bin/false")
        assert again.changed == ()

        # The switches that the admin added for our nodes stay in topology.conf.
        force = name == "topology"
        uninstall(config, live.config_path, restart=live.restart_command, force=force)
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


def test_uninstall_moves_waiting_jobs_and_refuses_what_needs_us(root: Path) -> None:
    live = LiveSite("small", root)
    try:
        live.start()
        config = live.config()
        install(config, live.config_path, restart=live.restart_command)
        listed = live.sbatch("--hold")
        assert live.job(listed)["Partition"] == "batch,onprem,aws"
        booting = live.sbatch("-p", "onprem")
        only_ours = live.sbatch("--hold", "-p", "aws")
        wait_for("a cloud node to be asked for", lambda: live.job(booting).get("NodeList") == "op1")
        text = live.conf.read_bytes()

        with pytest.raises(ConfigError) as refused:
            uninstall(config, live.config_path, restart=live.restart_command)
        assert refused.value.problems == (
            (
                f"job {booting} is on cloud nodes or in cloud partitions that leave (op1);"
                " wait for the end, or use --force"
            ),
            (
                f"job {only_ours} is waiting in cloud partitions only and would fail;"
                " cancel or move, or use --force"
            ),
        )
        assert live.conf.read_bytes() == text
        assert live.job(listed)["Partition"] == "batch,onprem,aws"

        live.run("scancel", str(booting), str(only_ours))
        wait_for("op1 to be free", lambda: not live.run("squeue", "-h", "-w", "op1").strip())
        uninstall(config, live.config_path, restart=live.restart_command)
        found = live.job(listed)
        assert (found["JobState"], found["Partition"]) == ("PENDING", "batch")
    finally:
        live.stop()


def test_an_install_that_would_end_jobs_on_nodes_that_stay_is_refused(root: Path) -> None:
    """slurmctld ends jobs whose partition has another name, whose node has other CPUs, or which
    require a node that is gone.
    """
    live = LiveSite("small", root)
    try:
        live.start()
        config = live.config()
        install(config, live.config_path, restart=live.restart_command)
        job = live.sbatch("-p", "onprem")
        wait_for("a cloud node to be asked for", lambda: live.job(job).get("NodeList") == "op1")
        text = live.conf.read_bytes()
        aws, onprem = config.clouds
        renamed = replace(config, clouds=(aws, replace(onprem, partition="ours")))
        *others, hall = config.pools
        resized = replace(config, pools=(*others, replace(hall, cpus=hall.cpus - 1)))
        requires = live.sbatch("--hold", "-p", "onprem", "-w", "op2")
        smaller = replace(config, pools=(*others, replace(hall, nodes="op1")))
        for changed, number, reason in (
            (renamed, job, "on cloud nodes or in cloud partitions that leave (op1)"),
            (resized, job, "on cloud nodes (op1) whose number of CPUs changes"),
            (smaller, requires, "waiting for cloud nodes that leave (--nodelist)"),
        ):
            with pytest.raises(ConfigError, match=re.escape(f"job {number} is {reason}")):
                install(changed, live.config_path, restart=live.restart_command)
            assert live.conf.read_bytes() == text
        # The files have the new CPUs then, and slurmctld has the old ones until its restart.
        install(resized, live.config_path, force=True)
        with pytest.raises(ConfigError, match="whose number of CPUs changes"):
            install(resized, live.config_path, restart=live.restart_command)
        told = install(resized, live.config_path, restart=live.restart_command, force=True).lines
        assert f"changes CPUs of op[1-2]: {hall.cpus} -> {hall.cpus - 1}" in told
        assert not any(
            line.startswith("changes ") for line in install(resized, live.config_path).lines
        )
    finally:
        live.stop()


def test_slurmctld_answers_while_nodes_boot_whatever_it_is_told_to_read(root: Path) -> None:
    """A booting node's name is in no DNS, and slurmctld 22.05 would look it up for 10 s with its
    configuration locked.
    """
    live = LiveSite("small", root)
    try:
        live.start()
        config = live.config()
        install(config, live.config_path, restart=live.restart_command)
        booting = live.sbatch("-p", "aws", "-N3")
        wait_for("nodes to be asked for", lambda: live.job(booting).get("NodeList") == "pub[1-3]")
        for _ in range(2):
            live.run("scontrol", "reconfigure")
            time.sleep(2.0)  # slurmctld goes through its jobs after it has answered
        live.restart()
        live.run("scancel", str(booting))
        wait_for("the job to end", lambda: not live.run("squeue", "-h", "-p", "aws").strip())
        log = (root / "ctld" / "log").read_text()
        assert not re.search("Unable to resolve|getaddrinfo", log)
    finally:
        live.stop()


@pytest.mark.release
def test_without_a_restart_the_programs_stay_until_slurmctld_let_go(root: Path) -> None:
    """A slurmctld that takes other nodes by reconfigure lets go at once; 22.05's at its restart."""
    live = LiveSite("small", root)
    try:
        live.start()
        config = live.config()
        at_once = release_of(config.slurm) >= controller.RECONFIGURES_NODES
        before = tree(live.conf.parent)
        done = install(config, live.config_path)
        _told(live, done, at_once)
        assert "pub1" in live.run("scontrol", "-a", "show", "node", "pub1")

        first = uninstall(config, live.config_path)
        assert live.conf.read_bytes() == before[str(live.conf)]
        assert first.restart_needed is not at_once
        assert (root / "libexec" / "slurm-elastic-prolog").exists() is not at_once
        plain = live.sbatch("--hold")
        assert live.job(plain)["Partition"] == "batch"  # the filter is inert at once
        if not at_once:
            live.restart()
            second = uninstall(config, live.config_path)
            assert not second.restart_needed

        assert tree(live.conf.parent) == before
        assert not (root / "libexec").exists()
        assert "not found" in live.run("scontrol", "show", "node", "pub1", check=False)
        assert live.job(plain)["JobState"] == "PENDING"
    finally:
        live.stop()


def _told(live: LiveSite, done: InstallResult, at_once: bool) -> None:
    """Check install's words on slurmctld without a restart command; restart it where needed."""
    assert done.restart_needed is not at_once
    if at_once:
        assert "slurmctld was reconfigured" in done.lines
    else:
        assert "Do NOT run `scontrol reconfigure`" in done.lines[-1]
        live.restart()


def test_a_failed_restart_leaves_everything_as_before(root: Path) -> None:
    live = LiveSite("small", root)
    try:
        live.start()
        before = tree(live.conf.parent)
        once = root / "once"
        flaky = root / "flaky"
        flaky.write_text(f"#!/bin/sh\n[ -e {once} ] && exec {root}/restart\n>{once}\nexit 3\n")
        flaky.chmod(0o755)
        said = "flaky: exit 3: no message; all files are as before, and slurmctld answers"
        with pytest.raises(SlurmElasticError, match=said):
            install(live.config(), live.config_path, restart=str(flaky))
        assert tree(live.conf.parent) == before
        assert not (root / "libexec").exists()
        assert " is UP" in live.run("scontrol", "ping")
    finally:
        live.stop()


def test_a_slurmctld_that_would_not_start_again_is_not_restarted(root: Path) -> None:
    """A file of the site's own became fatal after slurmctld had read it."""
    live = LiveSite("topology", root)
    try:
        live.start()
        topology = live.conf.parent / "topology.conf"
        topology.write_text(f"{topology.read_text()}SwitchName=rack1 Nodes=w[001-003]\n")
        before = tree(live.conf.parent)
        said = r"slurmctld runs, but would not start again .*\(rack1\) has already been defined"
        for restart in (live.restart_command, None):
            with pytest.raises(ConfigError, match=said):
                install(live.config(), live.config_path, restart=restart)
        assert tree(live.conf.parent) == before
        assert " is UP" in live.run("scontrol", "ping")
    finally:
        live.stop()


def test_the_sites_own_prolog_and_epilog_still_run(root: Path) -> None:
    live = LiveSite("own-lua", root)
    try:
        live.start()
        install(live.config(), live.config_path, restart=live.restart_command)
        job = live.sbatch("-w", live.node)
        wait_for("the job to run", lambda: live.job(job)["JobState"] == "RUNNING")
        assert (root / "ctld" / "prolog.jobs").read_text().split() == [str(job)]
        live.run("scancel", str(job))
        trace = root / "ctld" / "epilog.jobs"
        wait_for("the epilog", lambda: trace.exists() and trace.read_text().split() == [str(job)])
    finally:
        live.stop()


@pytest.mark.release
def test_a_running_slurmctld_reads_a_filter_that_changed_and_no_other(root: Path) -> None:
    """It goes by the time stamp of job_submit.lua, the site's own or ours, in whole seconds."""
    live = LiveSite("small", root)
    try:
        live.start()
        config = live.config()
        install(config, live.config_path, restart=live.restart_command)
        script = live.conf.parent / "job_submit.lua"
        both = live.sbatch("--hold", "-N2")
        assert live.job(both)["Partition"] == "batch,onprem,aws"

        stamp = script.stat().st_mtime
        other = replace(config, slurm=replace(config.slurm, epilog_hook=True))
        install(other, live.config_path, restart=live.restart_command)
        assert script.stat().st_mtime == stamp

        for nodes, listed in ((1, "batch"), (12, "batch,onprem,aws"), (1, "batch")):
            limited = replace(other, limits=replace(config.limits, nodes=nodes))
            install(limited, live.config_path, restart="/bin/false")
            assert live.job(live.sbatch("--hold", "-N2"))["Partition"] == listed
    finally:
        live.stop()


@pytest.mark.release
def test_a_pool_that_leaves_takes_no_waiting_job_with_it(root: Path) -> None:
    live = LiveSite("small", root)
    try:
        live.start()
        config = live.config()
        install(config, live.config_path, restart=live.restart_command)
        job = live.sbatch("--hold")
        assert live.job(job)["Partition"] == "batch,onprem,aws"
        smaller = replace(config, clouds=config.clouds[1:], pools=config.pools[2:])
        install(smaller, live.config_path, restart=live.restart_command)
        found = live.job(job)
        assert (found["JobState"], found["Partition"]) == ("PENDING", "batch,onprem")
    finally:
        live.stop()
