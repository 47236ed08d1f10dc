"""``try`` asks sbatch about its job before it buys a machine, and ends no machine of others."""

from __future__ import annotations

import os
import pwd
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import pytest

from slurm_elastic.base.hostlist import expand
from slurm_elastic.cli.setting_up import trial_run
from slurm_elastic.cli.setting_up.trial_run import StoppedError, Trial
from slurm_elastic.config import Cluster, Config, PoolSettings, SlurmSettings, domain_pools
from slurm_elastic.model.cluster import Location
from slurm_elastic.model.job_key import JobKey
from slurm_elastic.model.slurm import SlurmJob, SlurmNode
from slurm_elastic.policies.launch.trial import TrialStep
from slurm_elastic.providers.fake.settings import FakeCloud
from slurm_elastic.slurm.client.fake import FakeSlurm
from slurm_elastic.slurm.client.prompt import PromptCli
from slurm_elastic.state.ledger import Ledger

REFUSING = """\
#!/bin/sh
echo "$@" >>ASKED
for option; do
  case "$option" in --account=physics) exit 0 ;; esac
done
[ "$SBATCH_ACCOUNT" = physics ] && exit 0
echo "sbatch: error: please give an account: sbatch -A PROJECT" >&2
echo "allocation failure: Unspecified error" >&2
exit 1
"""


class Nodes:
    """A Slurm whose nodes are all powered down."""

    def nodes(self, names: Sequence[str]) -> dict[str, SlurmNode]:
        states = frozenset({"IDLE", "CLOUD", "POWERED_DOWN"})
        return {name: SlurmNode(name=name, states=states) for name in names}


def trial(tmp_path: Path, account: str = "") -> Trial:
    """A trial at a site whose job_submit.lua demands an account."""
    tmp_path.chmod(0o755)
    sbatch = tmp_path / "sbatch"
    sbatch.write_text(REFUSING.replace("ASKED", str(tmp_path / "asked")))
    sbatch.chmod(0o755)
    (tmp_path / "asked").touch()
    config = Config(
        cluster=Cluster(name="test"),
        state_dir=str(tmp_path / "state"),
        clouds=(FakeCloud(name="onprem", location=Location.ON_PREMISES),),
        pools=(PoolSettings(name="op", cloud="onprem", nodes="op[1-2]", cpus=2, memory=2000),),
        slurm=SlurmSettings(conf=str(tmp_path / "slurm.conf"), bin_dir=str(tmp_path)),
    )
    (pool,) = domain_pools(config, expand)
    user = pwd.getpwuid(os.getuid())
    return Trial(config, cast("PromptCli", Nodes()), pool, user, None, account)


def test_a_job_that_the_site_refuses_stops_the_trial_before_anything_is_bought(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SBATCH_ACCOUNT", raising=False)
    with pytest.raises(StoppedError) as stopped:
        trial(tmp_path).require_job()
    diagnosed = stopped.value.diagnosed
    assert diagnosed.step is TrialStep.ASKED
    assert diagnosed.name == "the job is refused"
    assert diagnosed.words.endswith(": please give an account: sbatch -A PROJECT")
    assert "--account" in diagnosed.remedy
    assert diagnosed.usual == (), "no list of guesses beside the site's own words"
    assert "--test-only --partition=onprem --nodelist=op1" in (tmp_path / "asked").read_text()


def test_the_job_has_the_account_of_the_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SBATCH_ACCOUNT", raising=False)
    trial(tmp_path, "physics").require_job()


def test_the_job_has_the_account_of_sbatchs_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SBATCH_ACCOUNT", "physics")
    trial(tmp_path).require_job()


def ending(tmp_path: Path, node: SlurmNode, job: SlurmJob) -> tuple[Trial, FakeSlurm]:
    """A trial that has to end its ``node``, on which there is a ``job``."""
    (tmp_path / "state").mkdir()
    Ledger(tmp_path / "state" / "ledger.db").close()
    tried, slurm = trial(tmp_path), FakeSlurm([node], [job])
    tried.slurm, tried.node = cast("PromptCli", slurm), node.name
    tried._job = JobKey(number=7, uid=1000, submitted=100.0)
    return tried, slurm


@pytest.mark.parametrize("states", [{"MIXED", "CLOUD"}, {"ALLOCATED", "CLOUD", "POWERING_UP"}])
@pytest.mark.parametrize("number", [8, 7])
def test_a_node_that_slurm_gave_to_another_job_stays(
    tmp_path: Path, states: set[str], number: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also to a job that has the number of the trial's job from before."""
    job = SlurmJob(
        id=number, states=frozenset({"RUNNING"}), user="anna", uid=2000, nodes=("op1",),
        submit=200.0,
    )  # fmt: skip
    tried, slurm = ending(tmp_path, SlurmNode(name="op1", states=frozenset(states)), job)
    assert tried._end()
    assert slurm.updates == []
    said = capsys.readouterr().out
    assert f"op1 stays: job {number} of anna runs there" in said


def test_the_trials_own_job_does_not_keep_its_machine(tmp_path: Path) -> None:
    own = SlurmJob(
        id=7, states=frozenset({"CANCELLED", "COMPLETING"}), uid=1000, nodes=("op1",), submit=100.0
    )
    up = SlurmNode(name="op1", states=frozenset({"IDLE", "CLOUD", "COMPLETING"}))
    tried, slurm = ending(tmp_path, up, own)
    assert tried._jobs_of_others() == []
    tried._order_end(up)
    assert [change["state"] for _, change in slurm.updates] == ["POWER_DOWN"]


def test_a_step_that_takes_long_is_shown_before_the_trial_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(trial_run, "WAIT_SHOWN_EVERY_S", 0.0)
    monkeypatch.setattr(trial_run, "POLL_EVERY_S", 0.01)
    monkeypatch.setattr(trial_run, "END_TIMEOUT_S", 0.0)
    waiting = trial(tmp_path)
    waiting.config.state.mkdir()
    Ledger(waiting.config.state / "ledger.db").close()
    waiting.slurm = cast("PromptCli", FakeSlurm(Nodes().nodes(["op1", "op2"]).values()))
    waiting.timeout = 0.1
    assert waiting.run() == 1
    before, stopped, _ = capsys.readouterr().out.partition("STOPPED before")
    assert stopped
    assert "not yet" in before
