"""A shared directory in which root is refused, as by an export with root_squash: jobs run on unharmed,
and it is said why they cannot be saved.

No kernel here speaks NFS. An NFS server answers a squashed root with EACCES; this kernel answers a
root without CAP_DAC_OVERRIDE with EACCES where the owner has no right to write.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .criu_world import PROGRAM, CriuWorld, gone, needed, started
from .engine import Engine

pytestmark = [pytest.mark.e2e, pytest.mark.release]

WITHOUT = f"""#!/bin/sh
exec setpriv --bounding-set=-dac_override {PROGRAM}.real "$@"
"""


class SquashedWorld(CriuWorld):
    """A node whose root part gets no further than a directory's mode says."""

    def __enter__(self) -> SquashedWorld:
        super().__enter__()
        host = self.nodes()["n1"]
        host.run(["mv", PROGRAM, f"{PROGRAM}.real"])
        host.put(PROGRAM, WITHOUT, mode=0o755)
        return self


@pytest.fixture(scope="module")
def world(docker_engine: Engine, trixie: str) -> Iterator[SquashedWorld]:
    with SquashedWorld(docker_engine, trixie, nodes=1) as running:
        needed(running)
        yield running


def test_a_job_runs_without_checkpoints_and_it_is_said_why(world: SquashedWorld) -> None:
    directory = world.shared / "ckpt"
    directory.chmod(0o555)
    job = world.counter(code=3)
    world.wait_more(job)
    assert world.state_of(job) == ""
    assert world.end(job, "FAILED")["ExitCode"] == "3:0"
    directory.chmod(0o755)
    said = "/shared/ckpt/containers: root may not write there (Permission denied)"
    log = (world.shared / "log" / "n1.syslog").read_text()
    assert f"a job runs without checkpoints: {said}: the export squashes root" in log


def test_a_job_whose_images_root_may_not_write_any_more_goes_on(world: SquashedWorld) -> None:
    job = started(world)
    images = world.shared / "ckpt" / "containers" / str(job) / "images"
    images.chmod(0o555)
    error = world.ask(job, "stop")["error"]
    assert "Permission denied" in error
    world.wait_more(job)
    images.chmod(0o751)
    assert world.end(job)["Restarts"] == "0"
    gone(world, job)
