"""An OpenStack on which no server finds a host: a real control plane, or a stand-in for nova."""

from __future__ import annotations

import os
import pwd
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol

from providers.openstack.bed import StackBed
from providers.openstack.stand_in import StandIn

from tests.realcloud.openstack.plane import ControlPlane, NoControlPlane, clouds_of, running_plane

SIZES = {"small": {"cpus": 2, "memory": 4096}}
PATIENCE = 120.0


class FullStack(Protocol):
    """``kind`` says what it is, ``cloud`` are the configuration's keys for it."""

    kind: str
    cloud: dict[str, Any]

    def refusal(self) -> float:
        """Seconds that its own "No valid host" takes, from the request to the server's ERROR."""

    def require_empty(self) -> None:
        """AssertionError if servers stay in the project."""


class Real:
    """Its one host is filled by a server of another project."""

    kind = "a real OpenStack control plane"

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane
        mine = plane.place.etc / "clouds-of-slurm.yaml"
        shutil.copy(plane.clouds_file, mine)
        mine.chmod(0o600)
        _give(mine)
        self.cloud = clouds_of(
            plane, name="stack", location="on-premises", clouds_file=str(mine), types=SIZES
        )
        plane.admin.leave_room(0)

    def refusal(self) -> float:
        cloud = self._plane.admin.connect()
        try:
            flavor = cloud.compute.find_flavor("small").id
            image = next(iter(cloud.image.images(name="worker"))).id
            began = time.monotonic()
            made = cloud.compute.create_server(
                name="probe", flavor_id=flavor, image_id=image, networks="none"
            )
            while cloud.compute.get_server(made.id).status != "ERROR":
                assert time.monotonic() < began + PATIENCE, "the full host is not noticed"
                time.sleep(0.1)
            took = time.monotonic() - began
            cloud.compute.delete_server(made.id)
        finally:
            cloud.close()
        self.require_empty()
        return took

    def require_empty(self) -> None:
        self._plane.admin.wait(self._plane.admin.is_empty, "no server is left")


class Emulated:
    """The stand-in, which has room for none and answers at once."""

    def __init__(self, nova: StandIn, directory: Path, why: str) -> None:
        self.kind = f"a stand-in for nova, as there is no control plane here: {why}"
        self._nova = nova
        bed = StackBed(nova, directory)
        _give(bed.file)
        nova.world.capacity = 0
        self.cloud = {
            "name": "stack", "provider": "openstack", "location": "on-premises", "cloud": "hpc",
            "clouds_file": str(bed.file), "image": "worker", "types": SIZES,
        }  # fmt: skip

    def refusal(self) -> float:
        return 0.0

    def require_empty(self) -> None:
        with self._nova.lock:
            assert self._nova.world.servers == {}


@contextmanager
def full_stack() -> Iterator[FullStack]:
    """The control plane where the machine can run one, which takes a minute to start."""
    with ExitStack() as running:
        try:
            stack: FullStack = Real(running.enter_context(running_plane(page=5)))
        except NoControlPlane as reason:
            stack = running.enter_context(_emulated(str(reason)))
        yield stack


@contextmanager
def _emulated(why: str) -> Iterator[FullStack]:
    directory = Path(tempfile.mkdtemp(prefix="se-three-", dir="/tmp"))
    directory.chmod(0o755)
    try:
        with StandIn().serving() as nova:
            yield Emulated(nova, directory, why)
    finally:
        shutil.rmtree(directory)


def _give(file: Path) -> None:
    """The daemon is user slurm and reads a clouds.yaml that is its own."""
    slurm = pwd.getpwnam("slurm")
    os.chown(file, slurm.pw_uid, slurm.pw_gid)
