"""What a trial finds out about the head's address as machines are told it."""

from __future__ import annotations

import socket
from pathlib import Path

from slurm_elastic.cli.setting_up.trial_evidence import Evidence
from slurm_elastic.model.memory import Machine
from slurm_elastic.model.slurm import SlurmNode
from tests import ledger_cases
from tests.cli.test_standby import CONFIG


def test_of_two_heads_one_that_answers_is_enough(tmp_path: Path) -> None:
    (tmp_path / "slurm.conf").write_text("SlurmctldHost=a\n")
    evidence = Evidence(CONFIG(tmp_path))
    with (
        socket.create_server(("127.0.0.1", 0)) as head,
        socket.create_server(("127.0.0.1", 0)) as o,
    ):
        answers, silent = (f"127.0.0.1:{one.getsockname()[1]}" for one in (head, o))
        o.close()
        astray, reached = evidence._answer_of(f"{silent},{answers}")
        assert (astray, reached != "") == ("", True)
        astray, reached = evidence._answer_of(f"{silent},{silent}")
        assert astray.count(silent) == 2
        assert reached == ""


def test_a_node_without_a_real_address_is_reached_at_its_machine(tmp_path: Path) -> None:
    """Until the machine registers, slurmctld shows the placeholder of slurm.conf."""
    evidence = Evidence(CONFIG(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as slurmd:
        machine = Machine(instance=ledger_cases.instance(address="127.0.0.1"), pool="burst")
        node = SlurmNode(
            name="pub1", states=frozenset(), address="233.252.0.3", port=slurmd.getsockname()[1]
        )
        assert evidence.answers(machine, node)
