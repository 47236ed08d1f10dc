"""``join.wipe`` and ``share: user`` at a site without an Epilog, on hosts of namespaces whose slurmds
the shipped text of joining starts. A node of the site's own has nothing of it.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slurm_elastic.sandbox.cluster import Sandbox
from slurm_elastic.sandbox.spec import PARTITION
from slurm_elastic.slurm.conf.fragment import EPILOG
from tests import netns
from tests.e2e.lab_site import PATIENCE, Site, no_sshd, site_on
from tests.netns import Lab

pytestmark = pytest.mark.e2e

ALICE, BOB = "nobody", "games"
OPTIONS = ("--partition=aws", "-N1", "-n1", "--output=/dev/null", "--chdir=/")
# This host's files are the machines', too.
OWN = "".join(
    f"mkdir -p {place}; mount -t tmpfs tmpfs {place}\n" for place in ("/usr/local/sbin", "/var/bin")
)


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    if reason := netns.why_not() or no_sshd():
        pytest.skip(reason)
    made = Lab(machines=1)
    with made.up():
        yield made


@pytest.fixture(scope="module")
def scratch() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="se-scratch-", dir="/tmp"))
    made.chmod(0o1777)
    made_by_us = not Path("/var/bin").exists()
    yield made
    shutil.rmtree(made)
    if made_by_us and Path("/var/bin").exists():
        Path("/var/bin").rmdir()


@pytest.fixture(scope="module")
def epilog() -> Path | None:
    """The site has none; ``test_wiped_own.py`` has one."""
    return None


@pytest.fixture(scope="module")
def site(
    lab: Lab, sandbox: Callable[..., Sandbox], scratch: Path, epilog: Path | None
) -> Iterator[Site]:
    pool = {"name": "pub", "nodes": "pub1", "markets": ["on-demand"], "share": "user"}
    conf = (f"Epilog={epilog}",) if epilog else ()
    with site_on(
        lab, sandbox, {}, prepared=OWN, static_nodes=1, groups=("nogroup", "games"), conf=conf,
        elastic={"pools": [pool], "join": {"wipe": [str(scratch)]}},
    ) as there:  # fmt: skip
        yield there


def ran(epilog: Path | None) -> list[str]:
    """The jobs for which the site's own Epilog ran."""
    return [] if epilog is None else (epilog.parent / "ran").read_text().split()


def test_nothing_of_a_user_is_left_for_the_next_one_and_both_never_share_the_machine(
    site: Site, scratch: Path, epilog: Path | None
) -> None:
    leave = (
        f"#!/bin/sh\numask 0\nmkdir {scratch}/deep; echo secret >{scratch}/deep/secret\nsleep 5\n"
    )
    first = site.sandbox.submit(leave, *OPTIONS, user=ALICE)
    look = f'#!/bin/sh\n[ -z "$(ls -A {scratch})" ]\n'
    second = site.sandbox.submit(look, *OPTIONS, user=BOB)
    shown = [site.sandbox.wait_job(job, timeout=2 * PATIENCE) for job in (first, second)]
    assert [job["ExitCode"] for job in shown] == ["0:0", "0:0"], shown
    assert shown[0]["NodeList"] == shown[1]["NodeList"] == "pub1"
    # Two CPUs are free for two jobs of one CPU: ExclusiveUser alone keeps the second one waiting.
    assert shown[1]["StartTime"] >= shown[0]["EndTime"]
    assert list(scratch.iterdir()) == []
    site.sandbox.wait_for(lambda: site.is_idle("pub1"), PATIENCE, "the Epilog has succeeded")
    assert ran(epilog) == ([str(first), str(second)] if epilog else [])


def test_the_sites_own_node_runs_a_harmless_epilog(
    site: Site, scratch: Path, epilog: Path | None
) -> None:
    ours = (site.sandbox.layout.dir / "etc" / "slurm-elastic.conf").read_text()
    assert (f"Epilog={EPILOG}" in ours) is (epilog is None)
    job = site.sandbox.submit(
        f"#!/bin/sh\ntouch {scratch}/stays\n", f"--partition={PARTITION}", "--output=/dev/null",
        "--chdir=/", user=ALICE,
    )  # fmt: skip
    node = site.sandbox.wait_job(job, timeout=PATIENCE)["NodeList"]
    site.sandbox.wait_for(lambda: site.is_idle(node), PATIENCE, "it is not drained")
    assert (scratch / "stays").exists()
    (scratch / "stays").unlink()
    assert ran(epilog)[-1:] == ([str(job)] if epilog else [])
