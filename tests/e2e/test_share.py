"""``share: exclusive`` as real Slurm and the submit filter have it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from slurm_elastic.cli.main import main
from slurm_elastic.sandbox.cluster import Sandbox
from tests.e2e.world import PATIENCE

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def site(sandbox: Callable[..., Sandbox]) -> Sandbox:
    pool = {"name": "pub", "share": "exclusive"}
    return sandbox(
        static_nodes=1, drop=("onprem",), suspend_time=600.0, groups=("nogroup",),
        elastic={"pools": [pool]},
    )  # fmt: skip


def test_each_job_has_its_nodes_for_itself(site: Sandbox) -> None:
    sleeps = ("#!/bin/sh\nsleep 20\n", "--partition=aws", "-n1", "--output=/dev/null", "--chdir=/")
    jobs = [site.submit(*sleeps, user="nobody") for _ in range(2)]
    nodes = {site.wait_job(job, timeout=2 * PATIENCE)["NodeList"] for job in jobs}
    assert len(nodes) == 2, "small jobs of one user would fit on one node"


def test_the_filter_counts_the_memory_of_whole_nodes(site: Sandbox) -> None:
    """Slurm gives the job all CPUs of a node, each with its memory."""
    (node,) = site.slurm.nodes(["pub1"]).values()
    too_much = f"--mem-per-cpu={node.memory // node.cpus + 1}"
    job = site.submit("#!/bin/sh\ntrue\n", "-n1", too_much, "--hold", "--output=/dev/null",
                      "--chdir=/", user="nobody")  # fmt: skip
    assert "aws" not in site.job(job)["Partition"].split(",")
    enough = f"--mem-per-cpu={node.memory // node.cpus}"
    job = site.submit("#!/bin/sh\ntrue\n", "-n1", enough, "--hold", "--output=/dev/null",
                      "--chdir=/", user="nobody")  # fmt: skip
    assert "aws" in site.job(job)["Partition"].split(",")


def test_conf_diff_agrees_with_what_is_installed(
    site: Sandbox, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["--config", str(site.layout.config), "conf", "diff"])
    assert "OverSubscribe" not in capsys.readouterr().out
    shown = site.run(["scontrol", "show", "partition", "aws"]).stdout
    assert "OverSubscribe=EXCLUSIVE" in shown
