"""The gate on real Slurm: a machine that fails the site's check gets no job, and a user's files are
gone from its scratch before another user's job starts there.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slurm_elastic.providers.base.joining import wiping
from slurm_elastic.sandbox.cluster import Sandbox
from tests.e2e.ckpt import kinds
from tests.e2e.world import PATIENCE, ledger, machines, running_nodes

pytestmark = pytest.mark.e2e
CHECK = (
    "#!/bin/sh\n[ ! -e {sick} ] || {{ echo looks bad; echo 'disk sda fails, twice'; exit 3; }}\n"
)
EPILOG = "#!/bin/sh\nexec {program}\n"
ALICE, BOB = "nobody", "games"


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="se-gate-", dir="/tmp"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


@pytest.fixture(scope="module")
def scratch(place: Path) -> Path:
    made = place / "scratch"
    made.mkdir()
    made.chmod(0o1777)
    return made


@pytest.fixture(scope="module")
def site(sandbox: Callable[..., Sandbox], place: Path, scratch: Path) -> Sandbox:
    """Its site has an Epilog of its own, which runs ours."""
    for name, text in (
        ("check", CHECK.format(sick=place / "sick")),
        ("wipe", wiping([str(scratch)], 600.0)),
        ("epilog", EPILOG.format(program=place / "wipe")),
    ):
        (place / name).write_text(text)
        (place / name).chmod(0o755)
    return sandbox(
        static_nodes=1, drop=("onprem",), dead_man=3600.0, check=str(place / "check"),
        resume_timeout=90.0, suspend_time=60.0, slurm_conf=(f"Epilog={place}/epilog",),
        groups=("nogroup", "root", "games"), elastic={"join": {"wipe": [str(scratch)]}},
    )  # fmt: skip


def why(site: Sandbox, kind: str, subject: str) -> str:
    book = ledger(site)
    try:
        return next((str(d.reason) for d in book.decisions.about(subject) if d.kind == kind), "")
    finally:
        book.close()


@pytest.mark.release
def test_a_file_of_alice_is_gone_before_bobs_job_on_the_same_machine(
    site: Sandbox, scratch: Path
) -> None:
    leave = (
        f"#!/bin/sh\numask 0\nmkdir {scratch}/deep && echo secret >{scratch}/deep/secret\n"
        f"echo secret >{scratch}/secret; ln -s /etc/passwd {scratch}/link\n"
    )
    first = site.submit(leave, "--partition=aws", "--output=/dev/null", "--chdir=/", user=ALICE)
    node = site.wait_job(first)["NodeList"]
    before = {m.instance.id for m in machines(site) if m.instance.node == node}
    look = f'#!/bin/sh\n[ -z "$(ls -A {scratch})" ]\n'
    second = site.submit(
        look, "--partition=aws", f"--nodelist={node}", "--output=/dev/null", "--chdir=/", user=BOB
    )
    assert site.wait_job(second)["ExitCode"] == "0:0"
    assert {m.instance.id for m in machines(site) if m.instance.node == node} == before
    assert list(scratch.iterdir()) == []
    assert Path("/etc/passwd").exists()


@pytest.mark.release
def test_files_stay_as_long_as_their_user_has_a_job_there(site: Sandbox, scratch: Path) -> None:
    stays = site.submit(
        "#!/bin/sh\nsleep 600\n", "--partition=aws", "-c1", "--output=/dev/null", "--chdir=/",
        user=ALICE,
    )  # fmt: skip
    ((node,),) = running_nodes(site, [stays]).values()
    leaves = site.submit(
        f"#!/bin/sh\necho mine >{scratch}/mine\n", "--partition=aws", "-c1",
        f"--nodelist={node}", "--output=/dev/null", "--chdir=/", user=ALICE,
    )  # fmt: skip
    site.wait_job(leaves)
    assert (scratch / "mine").exists()
    site.run(["scancel", str(stays)])
    site.wait_for(lambda: not (scratch / "mine").exists(), PATIENCE, "it goes with the last job")


@pytest.mark.release
def test_a_machine_that_fails_its_check_after_a_job_is_replaced(site: Sandbox, place: Path) -> None:
    # Many short sleeps: however long the machine stands still, its agent sees the job run.
    busy = f"touch {place}/sick; for n in $(seq 50); do sleep 0.5; done"
    job = site.submit(busy, "--partition=aws", user="root")
    node = site.wait_job(job)["NodeList"]
    site.wait_for(lambda: "node-failed" in kinds(site, node), 2 * PATIENCE, "it is taken out")
    assert "slurm-elastic gate: exit 3: disk sda fails; twice" in why(site, "node-failed", node)
    (place / "sick").unlink()


def test_a_machine_that_fails_its_check_gets_no_job_and_counts_as_a_failed_boot(
    site: Sandbox, place: Path
) -> None:
    site.wait_for(lambda: not machines(site), 2 * PATIENCE, "no machine is left")
    from_start = len(kinds(site, "pool:pub"))
    (place / "sick").touch()
    job = site.submit("true", "--partition=aws", user="root")
    site.wait_for(
        lambda: "boot-failed" in kinds(site, "pool:pub")[from_start:], 3 * PATIENCE, "it failed"
    )
    book = ledger(site)
    told = [str(d.reason) for d in book.decisions.about("pool:pub") if d.kind == "boot-failed"]
    book.close()
    assert "its check failed: exit 3: disk sda fails; twice" in told[-1]
    # Its node is given back right after the failure was counted: it has waited all the time.
    site.wait_for(lambda: site.job(job)["JobState"] == "PENDING", PATIENCE, "its job waits")
    (place / "sick").unlink()
    site.run(["scancel", str(job)])
