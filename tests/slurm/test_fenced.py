"""A Slurm of two heads: the one that does not act changes nothing."""

from __future__ import annotations

import pytest

from slurm_elastic.base.errors import SlurmError
from slurm_elastic.model.slurm import SlurmJob, SlurmNode
from slurm_elastic.slurm.client.cli import SlurmCli
from slurm_elastic.slurm.client.fake import FakeSlurm
from slurm_elastic.slurm.client.fenced import READS, fenced

CHANGES = {
    "any_nodes", "change_pending", "close", "exclude_nodes", "hold", "release", "requeue", "reserve",
    "reserve_other_nodes", "resume",
    "set_accounted_comment", "set_addresses", "set_admin_comment", "set_partitions", "set_requeue",
    "set_weights", "signal", "start_now", "suspend", "tell", "unreserve", "update_nodes",
}  # fmt: skip


def refuse() -> None:
    raise OSError("b (epoch 2) acts")


@pytest.fixture
def slurm() -> FakeSlurm:
    node = SlurmNode(name="n1", states=frozenset({"IDLE"}))
    return FakeSlurm([node], [SlurmJob(id=7, states=frozenset({"RUNNING"}), nodes=("n1",))])


def test_the_head_that_acts_tells_it(slurm: FakeSlurm) -> None:
    fenced(slurm, lambda: None).update_nodes(["n1"], state="drain", reason="so")
    assert slurm.nodes()["n1"].reason == "so"


def test_one_that_acts_no_more_looks_and_changes_nothing(slurm: FakeSlurm) -> None:
    one = fenced(slurm, refuse)
    for change in (
        lambda: one.update_nodes(["n1"], state="power_down_force"), lambda: one.requeue(7),
        lambda: one.set_requeue(7, requeue=True), lambda: one.signal(7, "KILL", full=True),
    ):  # fmt: skip
        with pytest.raises(SlurmError, match="b \\(epoch 2\\) acts") as told:
            change()
        assert told.value.unanswered, "slurmctld has refused nothing"
    assert (slurm.updates, [job.id for job in one.jobs()]) == ([], [7])
    assert one.slurmd_timeout() == slurm.timeout
    assert "RUNNING" in one.jobs()[0].states


def test_every_command_is_known_to_change_something_or_not() -> None:
    """One that is new has to find its place: to be kept from a head that acts no more is the rule."""
    names = {name for name in dir(SlurmCli) if not name.startswith("_")}
    assert names == READS | CHANGES
