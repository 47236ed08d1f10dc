"""What a round of repair reads of the ledger."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_elastic.controller.snapshot import all_nodes, see, terms_of
from slurm_elastic.errors import SlurmError
from slurm_elastic.policies.cluster import cloud_view
from tests.controller.world import World


@pytest.fixture
def site(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.close()


def test_no_launch_is_read_whole_for_a_missing_machine(
    site: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with an empty list of thousands, of launches of thousands."""
    for number in (1, 2):
        site.slurm.submit(number, (f"pub{number}",))
    site.advance(60)
    site.advance(1)
    site.ledger.observe("pub", (), site.now)
    read: list[str] = []
    monkeypatch.setattr(site.ledger, "launch", read.append)
    view = cloud_view(see(site.site, terms_of(site.site, "pub"), all_nodes(site.site), ()))
    assert [(m.misses, m.shown) for m in view.known] == [(1, True)] * 2
    assert read == []


def test_a_machine_that_no_read_has_had_is_not_shown(site: World) -> None:
    site.clouds["pub"].visible_after = 1000.0
    site.slurm.submit(1, ("pub1",))
    site.advance(10)
    site.advance(1)
    site.ledger.observe("pub", (), site.now)
    view = cloud_view(see(site.site, terms_of(site.site, "pub"), all_nodes(site.site), ()))
    assert [m.shown for m in view.known] == [False]


def test_no_node_at_all_is_no_answer_and_no_failure_of_the_command(
    site: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site.slurm, "nodes", lambda *_: {})
    with pytest.raises(SlurmError, match=r"^sinfo: Slurm lists no node at all"):
        all_nodes(site.site)
