"""Saves that the page orders."""

from __future__ import annotations

from pathlib import Path

import pytest
from status_cases import config_file, job

from slurm_elastic.base.errors import SlurmElasticError
from slurm_elastic.cli.orders import save_orders
from slurm_elastic.config import Config
from slurm_elastic.config.configfile import load
from slurm_elastic.model.protocols import Slurm
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.slurm.client.fake import FakeSlurm
from slurm_elastic.watch.door.rights import Person
from slurm_elastic.watch.door.saves import SaveLimit, Saver


def test_a_users_own_page_leaves_the_check_to_the_daemon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in Open OnDemand, where the page runs as its visitor, who cannot write the state."""

    def save_job(_config: Config, _slurm: Slurm, number: int, _now: float) -> tuple[str, ...]:
        return (f"the daemon is asked to save {number}",)

    monkeypatch.setattr(save_orders, "trusted", lambda _: frozenset({64030}))
    monkeypatch.setattr(save_orders, "save_job", save_job)
    planned = save_orders.PlannedSave(
        job=job(7, "ada", "pub1"), saver=Saver(uid=1001, name="ada"), preview=(), basis=()
    )
    lines = save_orders.carry_out(load(config_file(tmp_path)), planned, SaveLimit(lambda: 0.0))
    assert lines == ("the daemon is asked to save 7",)


def test_a_task_that_is_over_is_not_the_last_one_of_its_array(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last task has the number of the array."""
    last = SlurmJob(id=6, states=frozenset({"RUNNING"}), nodes=("op1",), array=6, task=2)
    monkeypatch.setattr(save_orders, "PromptCli", lambda _settings: FakeSlurm([], [last]))
    root = Person(uid=0, groups=frozenset(), name="root")
    with pytest.raises(SlurmElasticError, match="6_9 is not in Slurm's queue"):
        save_orders.plan(load(config_file(tmp_path)), "6_9", root)
