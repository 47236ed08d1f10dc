"""A bounded sample of ``scripts/bench failover``: heads that are struck while jobs arrive."""

from __future__ import annotations

import pytest
from e2e import ckpt
from e2e.conftest import why_not
from e2e.failover import KINDS, Failover
from e2e.heads import up

pytestmark = [pytest.mark.e2e, pytest.mark.release, pytest.mark.timeout(3000)]


def test_nothing_is_lost_or_bought_twice_whichever_head_is_struck() -> None:
    if reason := why_not():
        pytest.skip(reason)
    for pair in up(**ckpt.SITE):
        found = Failover(pair, 6).run(6)
        assert found.wrong == []
        assert sum(found.strikes.values()) == 6
        assert set(found.strikes) == set(KINDS)
        assert found.jobs > 0
        assert found.bill > 0
