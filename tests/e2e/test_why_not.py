"""Why jobs on real Slurm get no machine: refused by account, too large, waiting for another job."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.submission_site import SubmissionSite, wait_for
from e2e.test_submissions import running_site, submissions_config
from msgspec.structs import replace

from slurm_elastic.config import configfile
from slurm_elastic.config.sections.access import Who
from slurm_elastic.slurm.client.cli import SlurmCli
from slurm_elastic.state.ledger import Ledger
from slurm_elastic.watch.door.answers import DoorAnswers
from slurm_elastic.watch.door.server import Door

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def site() -> Iterator[SubmissionSite]:
    with running_site(enforce="NO", extra="RequeueExitHold=3") as made:
        config = submissions_config(made)
        allowed = Who(accounts=("physics",), max_time=24 * 3600.0)
        made.install(
            replace(config, clouds=tuple(replace(c, allow=allowed) for c in config.clouds))
        )
        made.restart()
        Ledger(config.state / "ledger.db").close()
        yield made


def submit(site: SubmissionSite, *args: str, user: str = "root") -> str:
    command = ("sbatch", "--parsable", "-o", "/dev/null", *args, "--wrap", "sleep 600")
    done = site.run(*command, user=user)
    assert done.code == 0, done.err
    return done.out.strip()


def explained(site: SubmissionSite, job: str, user: str = "root") -> dict[str, str]:
    """By pool, predicate and reason."""
    program = Path(sys.executable).with_name("slurm-elastic")
    config = site.root / "etc" / "slurm-elastic.yaml"
    done = site.run(str(program), "--config", str(config), "explain", job, "--json", user=user)
    assert done.code == 0, done.err
    return {v["pool"]: f"{v['predicate']}: {v['reason']}" for v in json.loads(done.out)["verdicts"]}


def waits(site: SubmissionSite, job: str) -> bool:
    return site.run("squeue", "-h", "-j", job, "-o", "%r").out.strip() not in ("", "None")


def test_each_job_is_told_what_is_in_its_way(site: SubmissionSite) -> None:
    submit(site, "-p", "static", "-N2", "--exclusive")
    refused = submit(site, "-A", "arts")
    large = submit(site, "-A", "physics", "-N", "9")
    first = submit(site, "-A", "physics", "-H")
    later = submit(site, "-A", "physics", f"--dependency=afterok:{first}")
    for job in (refused, large, later):
        wait_for(f"slurmctld's reason of job {job}", lambda job=job: waits(site, job))

    told = explained(site, refused)
    assert set(told.values()) == {
        "account: account arts is not in allow.accounts of slurm-elastic.yaml, which names physics"
    }
    told = explained(site, large)
    assert told["pub"].startswith("size: the job asks for 9 nodes, and 4 such can be up together")
    assert told["op"].startswith("size: the job asks for 9 nodes, and 2 such can be up together")
    told = explained(site, later)
    assert set(told.values()) == {"kept: Dependency: it waits for the jobs that it depends on"}


def test_a_hold_that_slurm_put_is_not_called_its_users(site: SubmissionSite) -> None:
    """22.05 has one word for such a job's state, SPECIAL_EXIT."""
    site.run("scancel", "--user=root")
    command = ("sbatch", "--parsable", "-o", "/dev/null", "-A", "physics", "--wrap", "exit 3")
    job = site.run(*command).out.strip()
    shown = ("squeue", "-h", "-j", job, "-o", "%T")
    wait_for("Slurm to hold it", lambda: site.run(*shown).out.strip() == "SPECIAL_EXIT")
    told = explained(site, job)
    assert told
    words = "Slurm holds it since its script ended with 3"
    assert all(words in why for why in told.values()), told
    site.run("scancel", job)


def test_a_user_is_told_through_the_read_door(site: SubmissionSite) -> None:
    config = configfile.load(site.root / "etc" / "slurm-elastic.yaml")
    job = submit(site, "-A", "arts", "-x", "st1", "-H", user="nobody")
    answers = DoorAnswers(config, SlurmCli(config.slurm), time.time)
    door = Door(config.read_socket, answers, answers.trusts)
    door.start()
    try:
        told = explained(site, job, user="nobody")
    finally:
        door.close()
    avoided = "partition: the job names nodes to avoid (-x): the submit filter leaves such a job"
    assert set(told.values()) == {f"{avoided} alone"}


def test_a_job_that_slurm_never_had_is_an_error(site: SubmissionSite) -> None:
    program = Path(sys.executable).with_name("slurm-elastic")
    config = site.root / "etc" / "slurm-elastic.yaml"
    done = site.run(str(program), "--config", str(config), "explain", "99999")
    assert done.code == 1
    assert "nothing is known about job 99999" in done.err


def doctor(site: SubmissionSite) -> dict[str, tuple[str, str]]:
    """Level and text by what was looked at."""
    program = Path(sys.executable).with_name("slurm-elastic")
    config = site.root / "etc" / "slurm-elastic.yaml"
    done = site.run(str(program), "--config", str(config), "doctor", "--quick", "--json")
    parts = json.loads(done.out)["parts"]
    assert parts[-1]["name"] == "a job of one node"
    return {f["check"]: (f["level"], f["found"]) for part in parts for f in part["findings"]}


def test_doctor_ends_with_what_sbatch_answers_in_each_partition(site: SubmissionSite) -> None:
    found = doctor(site)
    for partition in ("public", "onprem"):
        level, said = found[f"sbatch --test-only in partition {partition} with account physics"]
        assert level == "ok", said
        assert "to start at" in said
        assert f"partition {partition}" in said
    assert found["submit filter"] == ("ok", "job_submit.lua calls it")

    done = site.run("scontrol", "update", "nodename=op[1-2]", "state=drain", "reason=flood")
    assert done.code == 0, done.err
    found = doctor(site)
    assert found["nodes of pool op"] == ("wrong", "2 of 2 take no jobs: flood")
    level, said = found["a job in partition onprem"]
    assert (level, said) == ("note", "not tried: no node takes a job now (2 drained)")
