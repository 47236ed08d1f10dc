"""A cloud of two heads: the one that does not act calls nothing."""

from __future__ import annotations

import pytest

from slurm_elastic.base.errors import TransientError
from slurm_elastic.model.protocols import Chooser, Console, Limited, Provider, Reporting
from slurm_elastic.providers.base.fenced import fenced


class Cloud:
    """Counts its calls."""

    name = "aws"
    alternatives = 3
    trouble = "3 hosts are off"

    def __init__(self) -> None:
        self.calls: list[object] = []

    def terminate(self, ids: object) -> None:
        """As a provider's."""
        self.calls.append(ids)

    def startable(self) -> int:
        """As that of one with a limit."""
        return 7


def test_what_acts_calls_through() -> None:
    cloud = Cloud()
    one = fenced(cloud, lambda: None)  # type: ignore[arg-type]
    one.terminate(["i-1"])
    assert (cloud.calls, one.name) == ([["i-1"]], "aws")
    assert isinstance(one, Limited)
    assert one.startable() == 7
    assert not isinstance(one, Console)
    assert not isinstance(one, Chooser)


def test_what_does_not_act_asks_the_cloud_nothing() -> None:
    def require() -> None:
        raise OSError("b (epoch 2) acts")

    cloud = Cloud()
    one: Provider = fenced(cloud, require)  # type: ignore[arg-type]
    with pytest.raises(TransientError, match="b \\(epoch 2\\) acts"):
        one.terminate(["i-1"])
    assert cloud.calls == []
    assert one.name == "aws"
    assert isinstance(one, Reporting)
    assert one.trouble == "3 hosts are off", "what is remembered needs no call"
