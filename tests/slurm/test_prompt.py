"""The client of our own commands: it waits for nobody."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_elastic.base.errors import SlurmError
from slurm_elastic.config import SlurmSettings
from slurm_elastic.slurm.client.prompt import COMMAND_TIMEOUT_S, PromptCli
from tests.slurm.test_cli import Stub


@pytest.fixture
def stub(tmp_path: Path) -> Stub:
    made = Stub(tmp_path)
    made.queue({"JobID": "3", "State": "RUNNING"})
    return made


def client(stub: Stub, timeout: float = 60.0) -> PromptCli:
    settings = SlurmSettings(conf="/dev/null", bin_dir=str(stub.path), command_timeout=timeout)
    return PromptCli(settings)


@pytest.mark.parametrize(
    "ping",
    [
        "Slurmctld(primary) at head is UP",
        "Slurmctld(primary) at head is DOWN\nSlurmctld(backup) at head2 is UP",
    ],
)
def test_where_one_slurmctld_is_up_it_is_asked(stub: Stub, ping: str) -> None:
    stub.command("scontrol", ping)
    assert [job.id for job in client(stub).jobs()] == [3]


@pytest.mark.parametrize("code", [0, 1])
def test_one_that_is_stopped_is_told_of_at_once(stub: Stub, code: int) -> None:
    """22.05 exits 0 then, later ones 1; and squeue would try for 9 s."""
    stub.command("scontrol", "Slurmctld(primary) at head is DOWN\n*** RESTORE ***", code=code)
    with pytest.raises(SlurmError, match=r"scontrol ping: .*at head is DOWN") as e:
        client(stub).jobs()
    assert e.value.unanswered
    assert stub.ran() == ["scontrol ping"]


def test_one_that_hangs_is_waited_for_no_longer_than_said(stub: Stub) -> None:
    stub.command("scontrol", pause=30)
    with pytest.raises(SlurmError, match="scontrol ping: timed out: no answer in 1s") as e:
        client(stub, timeout=1.0).nodes()
    assert e.value.unanswered


def test_a_version_is_no_question_to_slurmctld(stub: Stub) -> None:
    stub.command("scontrol", "Slurmctld(primary) at head is DOWN", code=1)
    assert client(stub).version() == (22, 5)


def test_a_site_that_asked_for_more_patience_has_it_in_its_services_only(stub: Stub) -> None:
    assert SlurmSettings().command_timeout > COMMAND_TIMEOUT_S
