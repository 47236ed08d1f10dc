"""Which nodes a job has, and by which address they reach this one."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_elastic.machine.ckptroot import job_nodes
from slurm_elastic.machine.ckptroot.job_nodes import JobNode, JobNodes
from slurm_elastic.machine.ckptroot.job_state import JobState, parse
from slurm_elastic.machine.ckptroot.site import HelperSite, RequestRefused

from .test_job_state import MARK, text

SHOWN = """\
NodeName=n2 Arch=x86_64 NodeAddr=127.0.0.2 NodeHostName=n2 Comment=x
NodeName=n1 Arch=x86_64 NodeAddr=127.0.0.1 NodeHostName=n1 Comment=x
"""


def site(tmp_path: Path, shown: str) -> HelperSite:
    (tmp_path / "shown").write_text(shown)
    scontrol = tmp_path / "scontrol"
    scontrol.write_text(f'#!/bin/sh\n[ "$*" = "-o show node n[1-2]" ] && cat {tmp_path}/shown\n')
    scontrol.chmod(0o755)
    return HelperSite(cluster="t", directory=tmp_path, key=b"", reader=(0, 0),
                      scontrol=str(scontrol))  # fmt: skip


def state() -> JobState:
    found = parse(text({}), MARK, 8)
    assert found is not None
    return found


def test_slurmctld_says_which_nodes_a_job_has() -> None:
    assert (state().nodes, state().batch_host, state().node_count) == ("n[1-2]", "n1", 2)


def test_the_first_is_the_one_with_the_script(tmp_path: Path) -> None:
    nodes = job_nodes.of_job(site(tmp_path, SHOWN), state())
    assert nodes == JobNodes(JobNode("n1", "127.0.0.1"), (JobNode("n2", "127.0.0.2"),))
    assert nodes.are_one_host
    assert nodes.addresses == ["127.0.0.2"]
    assert job_nodes.interface_of("127.0.0.1") == "lo"
    assert job_nodes.interface_of("192.0.2.77") == ""


@pytest.mark.parametrize("shown", ["", SHOWN.partition("\n")[2], SHOWN.replace("=n1 ", "=n7 ")])
def test_a_list_that_is_not_whole_is_refused(tmp_path: Path, shown: str) -> None:
    with pytest.raises(RequestRefused, match=r"does not say which nodes n\[1-2\] are"):
        job_nodes.of_job(site(tmp_path, shown), state())


def test_a_job_of_one_node_has_no_others(tmp_path: Path) -> None:
    alone = JobState(state="RUNNING", uid=1, restarts=0, nodes="n1", batch_host="n1")
    assert job_nodes.of_job(site(tmp_path, ""), alone) is None
