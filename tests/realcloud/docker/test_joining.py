"""The whole way by which a machine joins that has no key of the cluster: user data, carried out by
Debian's cloud-init; host keys, read on the console; the munge key, by SSH; munged; slurmd; a job.
Real Slurm 24.11 and slurm-elasticd; EC2 is the sandbox's, its machines are containers.
"""

from __future__ import annotations

import email
import gzip
import json
from collections.abc import Iterator

import pytest

from .engine import Engine
from .joining_world import Hypervisor, JoiningWorld
from .whereabouts import files_with, found_in_image, is_in, text_of
from .world import Host

pytestmark = [pytest.mark.e2e, pytest.mark.release]

KEY = "etc/munge/munge.key"
REFUSED = "wrong host key, nothing was sent: "
PATIENCE = 700.0


class Site:
    """The world with two jobs on their way, one in each cloud: what a machine that does not register
    takes goes by while the other one boots.
    """

    def __init__(self, world: JoiningWorld) -> None:
        self.world = world
        self.joined = world.sbatch("hostname; id -un", "-p", "aws", "-o", "out-%j")
        self.refused = world.sbatch("hostname", "-p", "far", "-o", "out-%j")


@pytest.fixture(scope="module")
def site(docker_engine: Engine, trixie: str, cloud_image: str) -> Iterator[Site]:
    with JoiningWorld(docker_engine, trixie, cloud_image) as running:
        yield Site(running)


def first(hypervisor: Hypervisor) -> tuple[str, Host]:
    """The region's first machine."""
    return next(iter(hypervisor.hosts.items()))


def test_a_machine_without_any_key_joins_and_runs_a_job(site: Site) -> None:
    world = site.world
    assert " 24.11." in world.slurm("scontrol", "-V").stdout
    shown = world.wait_job(site.joined, patience=PATIENCE)
    assert (shown["NodeList"], shown["Restarts"]) == ("pub1", "0")
    assert (world.shared / "jobs" / f"out-{site.joined}").read_text() == "pub1\nalice\n"
    assert "key-brought" in world.kinds("pub1")
    name, host = first(world.aws)
    (known,) = [
        line for line in (world.shared / "state" / "known_hosts").read_text().splitlines()
        if line.endswith(f" {name}") and " ssh-ed25519 " in line
    ]  # fmt: skip
    shows = host.run(["cat", "/etc/ssh/ssh_host_ed25519_key.pub"]).stdout
    assert known.split()[1:3] == shows.split()[:2]


def test_the_munge_key_is_on_the_machine_and_nowhere_else(site: Site) -> None:
    world = site.world
    world.wait_job(site.joined, patience=PATIENCE)
    secret = world.munge_key
    name, host = first(world.aws)
    assert files_with(secret, host) == {KEY}
    stat = host.run(["stat", "-c", "%a %U:%G", f"/{KEY}"]).stdout.strip()
    assert stat == "400 munge:munge"
    said = [
        *written(world.aws.user_data[name]),
        host.container.logs(),
        json.dumps([c.attrs for c in world.containers()]).encode(),
        json.dumps(list(world.aws.machines()), default=str).encode(),
        text_of(world.shared / "log"),
        text_of(world.shared / "state"),
        world.elastic("explain", "pub1").encode(),
    ]
    assert b"SLURM_ELASTIC_SETTINGS" in b"".join(said), "the program is among them"
    assert [text for text in said if is_in(secret, text)] == []
    # A line of the image's own file: the search finds what is there.
    there = b"cloud-init modules --mode=final"
    image = world.client.images.get(world.machine_image)
    assert found_in_image([secret, there], image) == {there}


def written(data: bytes) -> list[bytes]:
    """User data as it is, and all parts of it decoded."""
    plain = gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data
    parts = email.message_from_bytes(plain).walk()
    decoded = [p.get_payload(decode=True) for p in parts if not p.is_multipart()]
    return [data, plain, *(text for text in decoded if isinstance(text, bytes))]


def test_who_shows_another_host_key_gets_no_key_and_the_node_is_given_up(site: Site) -> None:
    world = site.world
    world.wait_for(lambda: "key-refused" in world.kinds("far1"), "it is refused", PATIENCE)
    name, host = first(world.far)

    def ended() -> bool:
        states = {m["InstanceId"]: m["State"]["Name"] for m in world.far.machines()}
        return states[name] in ("shutting-down", "terminated")

    world.wait_for(ended, "its machine is ended", PATIENCE)
    why = f"munge key not brought: {REFUSED}"
    world.wait_for(
        lambda: why in world.slurm("scontrol", "show", "node", "far1").stdout,
        "Slurm has the reason, for sinfo -R",
    )
    told = " ".join(world.elastic("explain", "far1", "--all").split())
    assert f"booted but not registered in time; 1 in a row in pool far; {why}" in told
    world.wait_job(site.refused, "PENDING")  # it is not lost, and waits for the pool's rest to end
    world.slurm("scancel", str(site.refused))
    assert "key-brought" not in world.kinds("far1")
    assert files_with(world.munge_key, host) == set()
    seen = host.container.logs().decode()
    assert "Connection " in seen, "somebody was there"
    assert "Accepted" not in seen, "and went without logging in"
