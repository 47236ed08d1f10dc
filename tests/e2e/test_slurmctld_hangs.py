"""A slurmctld that hangs holds up the daemon's readings of Slurm, and nothing else of it."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest
from patience import awake, stretched

from slurm_elastic.sandbox.cluster import Sandbox
from slurm_elastic.sandbox.daemons import ELASTICD
from tests.e2e.world import slurmctld_away

pytestmark = pytest.mark.e2e
AT_MOST = 3.0
PROMPT = (sys.executable, "-P", "-m", "slurm_elastic.cli.main")


@pytest.fixture(scope="module")
def site(sandbox: Callable[..., Sandbox]) -> Sandbox:
    return sandbox(static_nodes=1, drop=("onprem",), slurm_conf=("MessageTimeout=100",))


@pytest.mark.release
def test_users_are_answered_and_the_daemon_ends_while_slurmctld_hangs(site: Sandbox) -> None:
    log = site.processes.log(ELASTICD)
    with slurmctld_away(site, "hanging"):
        for about in ("aws", "pub1") * 5:  # two readings of Slurm begin meanwhile
            with awake() as spent:
                told = site.run([*PROMPT, "explain", about], user="nobody", check=False).stdout
            assert spent() < stretched(AT_MOST)
            assert ("pool pub" if about == "aws" else "Slurm does not answer") in told
        assert "stopped" not in log.read_text()
        with awake() as spent:
            site.daemon_stop()
        assert "stopped" in log.read_text().splitlines()[-1]
        assert spent() < stretched(AT_MOST)
    site.daemon_start()
