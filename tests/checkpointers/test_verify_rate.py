"""The head and the node count the time to read an image alike; the node imports nothing of the head."""

from __future__ import annotations

from slurm_elastic.checkpointers import node_helper_client
from slurm_elastic.machine.ckptroot import hold


def test_the_node_holds_a_job_for_as_long_as_the_head_may_read_its_image() -> None:
    assert hold.VERIFY_RATE == node_helper_client.VERIFY_RATE


def test_a_renewed_hold_outlasts_the_next_renewal() -> None:
    assert hold.RENEWED_S >= 2 * node_helper_client.RENEW_HOLD_EVERY_S
