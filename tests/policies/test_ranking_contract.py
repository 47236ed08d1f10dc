"""Our own ranking keys have the duties of those of other packages."""

from __future__ import annotations

import pytest

from slurm_elastic.config.ranking_kinds import RankingKind
from slurm_elastic.policies.launch.ranking import KEYS
from slurm_elastic.testing.ranking import RankingContract

OWN = ("location", "market", "price", "risk", "waste")


@pytest.fixture(params=OWN)
def kind(request: pytest.FixtureRequest) -> RankingKind:
    return RankingKind(name=request.param, key=KEYS[request.param])


class TestOwnKeys(RankingContract):
    pass


def test_these_are_all() -> None:
    assert tuple(KEYS) == OWN
