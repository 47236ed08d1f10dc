"""``slurm-elastic price`` on a real slurmctld: sbatch reads the options, users ask the daemon."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slurm_elastic.base.errors import SlurmElasticError
from slurm_elastic.config import SlurmSettings
from slurm_elastic.sandbox.cluster import Sandbox
from slurm_elastic.slurm.client.commands.sbatch_test_only import ask_sbatch
from tests.e2e.world import ELASTIC, running_nodes

pytestmark = [pytest.mark.e2e, pytest.mark.release]
SCRIPT = "#!/bin/sh\n#SBATCH --time=30 --ntasks=2\n#SBATCH --comment='two words'\nsleep 1\n"


@pytest.fixture(scope="module")
def site(sandbox: Callable[..., Sandbox]) -> Sandbox:
    return sandbox(slurm_conf=("PrivateData=jobs",), static_nodes=1)


@pytest.fixture
def script(site: Sandbox) -> Path:
    path = site.layout.dir / "priced.sh"
    path.write_text(SCRIPT)
    path.chmod(0o755)
    return path


def price(site: Sandbox, *words: str, user: str = "nobody") -> subprocess.CompletedProcess[str]:
    command = [*ELASTIC, "price", *words]
    return site.run(command, user=user, check=False)


def rows(done: subprocess.CompletedProcess[str]) -> dict[str, dict[str, Any]]:
    assert done.stdout, done.stderr
    found = json.loads(done.stdout)["rows"]
    return {r["forecast"]["partition"]: r | r["forecast"] for r in found}


def test_options_are_read_by_sbatchs_own_rules(site: Sandbox, script: Path) -> None:
    settings = SlurmSettings(conf=str(site.layout.slurm_conf))
    asked = ask_sbatch(settings, str(script), ["--time", "1:00:00", "-p", "batch"])
    assert asked.options["time"] == "01:00:00", "the command line goes before the script"
    assert asked.options["ntasks"] == "2"
    assert asked.options["partition"] == "batch"
    assert asked.start is not None
    with pytest.raises(SlurmElasticError, match="unrecognized option"):
        ask_sbatch(settings, str(script), ["--no-such-option"])


def test_a_user_sees_starts_and_costs_of_each_partition(site: Sandbox, script: Path) -> None:
    running_nodes(site, [site.submit("sleep 300", "--partition=batch", "--time=60", user="root")])
    done = price(site, str(script), "--partition=batch,onprem,aws", "--nodes=1", "--json")
    found = rows(done)
    assert (found["batch"]["low"], found["batch"]["high"]) == (0, 0)
    assert 0 < found["batch"]["start_s"][1] < found["batch"]["by_limits_s"] <= 3600
    assert found["batch"]["by_slurm_s"] > 3000, "Slurm goes by the limit of what runs"
    assert found["onprem"]["start_s"][1] > 0, "a machine has to boot"
    assert found["aws"]["chance"] > 0
    assert 0 < found["aws"]["low"] <= found["aws"]["high"]
    table = price(site, str(script), "--partition=batch,onprem,aws")
    assert table.returncode == 0
    assert "Costs are for whole machines" in table.stdout
    assert price(site, str(script), "--constraint=nowhere").returncode == 1
    unknown = price(site, str(script), "--partition=nosuch")
    assert (unknown.returncode, unknown.stdout) == (2, "")
    assert "Slurm has no partition nosuch; slurm.conf has batch, " in unknown.stderr
    assert max(map(len, table.stdout.splitlines())) <= 80


def test_a_job_without_a_limit_is_priced_for_the_limit_that_slurm_gives_it(site: Sandbox) -> None:
    path = site.layout.dir / "unlimited.sh"
    path.write_text("#!/bin/sh\nsleep 1\n")
    found = rows(price(site, str(path), "--partition=aws,batch", "--json"))
    job = site.submit("true", "--partition=aws,batch", "--hold")
    command = ["squeue", "--noheader", "--format=%l", f"--jobs={job}"]
    given = site.run(command, user="root").stdout.strip()
    assert given == "10:00"
    assert (found["aws"]["limit_s"], found["batch"]["limit_s"]) == (600, 600)


def test_a_question_about_one_partition_takes_one_job_number(site: Sandbox, script: Path) -> None:
    before = site.submit("true", "--partition=batch")
    assert price(site, str(script), "--partition=batch").returncode == 0
    assert site.submit("true", "--partition=batch") == before + 2
