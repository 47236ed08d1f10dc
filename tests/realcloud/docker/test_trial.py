"""``slurm-elastic try`` on a real Docker engine and Slurm 24.11: a container followed to its end, and
mistakes that are real there: an image that no engine has, one of another release, a network without
a route, a head by a name that nobody knows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from patience import stretched

from slurm_elastic.policies.launch.trial import TrialStep

from .elastic_world import ElasticWorld
from .engine import Engine
from .world import CONFIG, LABEL, USER

pytestmark = [pytest.mark.e2e, pytest.mark.release]
LIMIT = 600.0
GIVEN_UP = 22.0
"""Seconds in which an idle machine's container says why it does not register, and more than it needs."""
PRINTS = ["sh", "-c", "exec slurm-node"]
"""A machine's shell runs this, so that its output is seen."""


class FirstDay(ElasticWorld):
    """Besides ``boxes``, clouds each of which has one mistake and one node."""

    machine_nodes = 1

    def __init__(self, engine: Engine, image: str, newer: str) -> None:
        super().__init__(engine, image, nodes=1, cpus=1, socket=True)
        self.newer, self.island = newer, f"{self.id}-island"

    def set_up_head(self) -> None:
        self.client.networks.create(self.island, internal=True, labels={LABEL: self.id})

    def containers(self) -> list[Any]:
        """The containers of both networks."""
        return self.client.containers.list(
            all=True, filters={"network": [self.id, self.island]}, ignore_removed=True
        )

    def try_(self, cloud: str, *more: str) -> tuple[int, str]:
        """Exit code and all that it said."""
        words = ["slurm-elastic", "--config", CONFIG, "try", cloud, "--yes", "--user", USER, *more]
        done = self.head.run(words, check=False, timeout=LIMIT)
        return done.returncode, done.stdout + done.stderr

    def _elastic(self) -> dict[str, Any]:
        config = super()._elastic()
        (boxes,), (box,) = config["clouds"], config["pools"]
        self.head.container.reload()
        networks = self.head.container.attrs["NetworkSettings"]["Networks"]
        address = networks[self.id]["IPAddress"]
        mistakes: dict[str, dict[str, Any]] = {
            "newer": {"image": self.newer},
            "lost": {"image": "nobody/has:it"},
            "island": {"network": self.island, "environment": {"SLURM_ELASTIC_HEAD": address}},
            "misled": {"environment": {"SLURM_ELASTIC_HEAD": "head.invalid"}},
        }
        for name, mistake in mistakes.items():
            config["clouds"].append(boxes | {"name": name, "command": PRINTS} | mistake)
            config["pools"].append(
                box | {"name": f"{name}-pool", "cloud": name, "nodes": f"{name}1"}
            )
        return config


def given_up() -> str:
    return str(round(stretched(GIVEN_UP)))


@pytest.fixture(scope="module")
def world(docker_engine: Engine, trixie: str, forky: str) -> Iterator[FirstDay]:
    with FirstDay(docker_engine, trixie, forky) as running:
        yield running


def test_a_container_is_followed_from_its_order_to_its_end(world: FirstDay) -> None:
    code, said = world.try_("boxes")
    assert code == 0, said
    told = [line.split()[1] for line in said.splitlines() if line.strip()[:1].isdigit()]
    assert told == [str(step) for step in TrialStep]
    assert f"a job of one node has run on it, by {USER}" in said
    world.back_to_zero()


def test_an_image_that_the_engine_does_not_have(world: FirstDay) -> None:
    code, said = world.try_("lost")
    assert code == 1, said
    assert "STOPPED before launched" in said, said
    assert "cause: wrong image: " in said, said
    assert "No such image: nobody/has:it" in said
    assert "no machine was started" in said


def test_an_image_of_a_later_slurm(world: FirstDay) -> None:
    code, said = world.try_("newer", "--timeout", given_up())
    assert code == 1, said
    assert "STOPPED before re" in said, said
    assert "cause: other Slurm release: " in said, said
    assert not world.running()


def test_a_network_without_a_route(world: FirstDay) -> None:
    code, said = world.try_("island", "--timeout", given_up())
    assert code == 1, said
    assert "STOPPED before reached" in said, said
    assert "cause: no route: " in said, said
    assert not world.running()


def test_a_head_by_a_name_that_nobody_knows(world: FirstDay) -> None:
    code, said = world.try_("misled", "--timeout", given_up())
    assert code == 1, said
    assert "STOPPED before reached" in said, said
    assert "cause: name that does not resolve: " in said, said
    assert "head.invalid" in said
    assert not world.running()
