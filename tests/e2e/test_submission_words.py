"""Users read at submission how their jobs are not saved: on the Slurm of this machine."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.submission_site import Ran, SubmissionSite, wait_for
from msgspec.structs import replace

from slurm_elastic.config import Cluster, Config, PoolSettings, SlurmSettings
from slurm_elastic.config.sections.access import Who
from slurm_elastic.config.sections.checkpoint import CheckpointSettings
from slurm_elastic.model.cluster import Location
from slurm_elastic.providers.fake.settings import FakeCloud

pytestmark = pytest.mark.e2e
WRONG = {
    "ckpt=krui": "ckpt=krui: expected one of none, signal, criu, dmtcp, blcr",
    "ckpt=criu,tcp=colse": "ckpt=criu,tcp=colse: tcp=colse: expected one of keep, close",
    "ckpt=criu,tpc=close": "ckpt=criu,tpc=close: tpc: expected one of tcp, limit",
    "chkpt=criu": "chkpt=criu: expected ckpt=criu",
    "ckpt": "ckpt: expected ckpt=METHOD, METHOD one of none, signal, criu",
}


@pytest.fixture(scope="module")
def site() -> Iterator[SubmissionSite]:
    with tempfile.TemporaryDirectory(prefix="words-") as directory:
        os.chmod(directory, 0o755)
        running = SubmissionSite(Path(directory), enforce="ALL")
        try:
            running.start()
            running.install(config(running))
            running.restart()
            yield running
        finally:
            running.stop()


def config(site: SubmissionSite) -> Config:
    plain = Config(
        cluster=Cluster(name="submissions"),
        state_dir=str(site.root / "state"),
        slurm=SlurmSettings(conf=str(site.conf), programs_dir=str(site.root / "programs")),
        clouds=(FakeCloud(name="onprem", location=Location.ON_PREMISES),),
        pools=(
            PoolSettings(name="op", slurmd_port=1, cloud="onprem", nodes="op1", cpus=2, memory=8000,
                         real_memory=6000),
        ),
    )  # fmt: skip
    return replace(plain, checkpoint=CheckpointSettings(directory=str(site.root / "images")))


def sbatch(site: SubmissionSite, *options: str, line: str = "sleep 1") -> Ran:
    script = site.root / "home" / "job.sh"
    script.write_text(f"#!/bin/bash\n{line}\n")
    words = ("sbatch", "--parsable", "-o", "/dev/null", "-p", "static", *options, str(script))
    return site.run(*words, user="nobody")


def ended(site: SubmissionSite) -> None:
    site.run("scancel", "-u", "nobody")
    wait_for("no job to be left", lambda: not site.run("squeue", "-h").out.strip())


@pytest.mark.parametrize("comment", WRONG)
@pytest.mark.parametrize(
    "command",
    [
        "sbatch",
        pytest.param("srun", marks=pytest.mark.release),
        pytest.param("salloc", marks=pytest.mark.release),
    ],
)
def test_a_wrong_word_is_an_error_that_names_the_right_one(
    site: SubmissionSite, comment: str, command: str
) -> None:
    if command == "sbatch":
        done = sbatch(site, f"--comment={comment}")
    else:
        done = site.run(command, "-p", "static", f"--comment={comment}", "true", user="nobody")
    assert done.code != 0
    assert f"slurm-elastic: --comment={WRONG[comment]}" in done.err
    assert site.run("squeue", "-h").out == ""


def test_prose_is_no_word_of_ours(site: SubmissionSite) -> None:
    done = sbatch(site, "--comment=the ckpt of krui is in /data/ckpt")
    assert (done.code, done.err) == (0, "")
    ended(site)


def test_who_starts_steps_reads_that_they_are_not_saved(site: SubmissionSite) -> None:
    done = sbatch(site, "--comment=ckpt=criu", line="srun sleep 1")
    assert done.code == 0
    assert "slurm-elastic: steps (srun) are not saved by criu" in done.err
    assert "start the program without srun" in done.err
    ended(site)


def test_a_job_of_several_nodes_or_of_none_of_its_own_reads_that_it_is_not_saved(
    site: SubmissionSite,
) -> None:
    said = "slurm-elastic: this job is not saved: criu saves batch jobs of one node."
    done = sbatch(site, "--comment=ckpt=criu", "-N2")
    assert done.code == 0
    assert f"{said} It would help to ask for one node" in done.err
    ended(site)
    for command in ("srun", "salloc"):
        done = site.run(command, "-p", "static", "--comment=ckpt=criu", "true", user="nobody")
        assert done.code == 0
        assert f"{said} It would help to submit a script with sbatch" in done.err
    ended(site)


NEVER = {
    ("-N9",): "this job can never start in partition static: it asks for 9 nodes, and at most 2 such "
    "nodes can run; in onprem: it asks for 9 nodes, and at most 3 such nodes can run",
    ("-t", "5-0"): "this job can never start in partition static: it asks for a time of "
    "5-00:00:00, and MaxTime is 2-00:00:00; in onprem: it asks for a time of 5-00:00:00, and MaxTime "
    "is 01:00:00",
    ("-p", "onprem", "-t", "5:00:00"): "this job can never start in partition onprem: it asks for a "
    "time of 05:00:00, and MaxTime is 01:00:00",
}  # fmt: skip


@pytest.fixture(scope="module")
def limited() -> Iterator[SubmissionSite]:
    """A site that lets such jobs wait, and a cloud with a default and a maximum of time."""
    with tempfile.TemporaryDirectory(prefix="words-") as directory:
        os.chmod(directory, 0o755)
        running = SubmissionSite(Path(directory), enforce="NO")
        try:
            running.start()
            plain = config(running)
            pool = replace(plain.pools[0], nodes="op[1-3]")
            who = Who(default_time=600, max_time=3600)
            running.install(replace(plain, allow=who, pools=(pool,)))
            running.restart()
            yield running
        finally:
            running.stop()


@pytest.mark.parametrize("options", NEVER)
def test_a_job_that_can_never_start_is_told_so_at_submission(
    limited: SubmissionSite, options: tuple[str, ...]
) -> None:
    script = limited.root / "home" / "job.sh"
    script.write_text("#!/bin/bash\nsleep 1\n")
    done = limited.run("sbatch", "-o", "/dev/null", *options, str(script), user="nobody")
    assert done.code == 0, done.err
    assert f"slurm-elastic: {NEVER[options]}" in done.err
    ended(limited)


def test_who_gets_only_a_cloud_reads_its_default_time(limited: SubmissionSite) -> None:
    script = limited.root / "home" / "job.sh"
    script.write_text("#!/bin/bash\nsleep 1\n")
    words = ("sbatch", "-o", "/dev/null", "-N3")  # more than the site's own two nodes
    done = limited.run(*words, str(script), user="nobody")
    assert done.code == 0, done.err
    # The site's own DefaultTime is an hour.
    said = "slurm-elastic: without --time this job may end after 00:10:00 in partition onprem"
    assert said in done.err
    timed = limited.run(*words, "-t", "5", str(script), user="nobody")
    assert (timed.code, timed.err) == (0, "")
    ended(limited)
