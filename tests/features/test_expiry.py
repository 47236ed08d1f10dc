"""Credentials that end: looked at by the daemon, told by all who tell."""

from __future__ import annotations

import dataclasses
import logging
from typing import Any

import pytest

from slurm_elastic.base.errors import TransientError
from slurm_elastic.config.sections.telling import NotifyEvent
from slurm_elastic.features.growth.expiry import CredentialsEnd
from slurm_elastic.features.news.telling import all_occasions
from slurm_elastic.model.protocols import Expiring
from slurm_elastic.state.credentials import ends_of
from tests.controller.world import Inline, World


class Ending:
    """Tells an end, or fails."""

    def __init__(self, ends: float | None) -> None:
        self.ends = ends
        self.error: Exception | None = None

    def credentials_end(self) -> float | None:
        if self.error is not None:
            raise self.error
        return self.ends


def looked(world: World, provider: Any) -> None:
    assert isinstance(provider, Expiring)
    site = world.site
    CredentialsEnd(dataclasses.replace(site, providers={"pub": provider}), Inline()).look()


def told(world: World) -> list[tuple[str, str]]:
    return [
        (one.key, one.text)
        for one in all_occasions(world.site)
        if one.event is NotifyEvent.CREDENTIALS
    ]


def test_it_is_told_from_a_day_before_and_no_more_once_they_are_renewed(world: World) -> None:
    provider = Ending(world.now + 3 * 86400)
    looked(world, provider)
    assert dict(ends_of(world.ledger.health.all())) == {"pub": provider.ends}
    assert told(world) == []
    provider.ends = world.now + 5 * 3600
    looked(world, provider)
    ((key, text),) = told(world)
    assert key == f"credentials/pub/{provider.ends:.0f}"
    assert "credentials of cloud pub end in 5 h" in text
    provider.ends = world.now + 90 * 86400
    looked(world, provider)
    assert told(world) == []
    provider.ends = None
    looked(world, provider)
    assert dict(ends_of(world.ledger.health.all())) == {}


@pytest.mark.parametrize("error", [TransientError("pub", "Busy", "later"), ValueError("nonsense")])
def test_a_cloud_that_does_not_answer_keeps_what_it_said(
    world: World, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    caplog.set_level(logging.INFO)
    provider = Ending(world.now - 60)
    looked(world, provider)
    provider.error = error
    looked(world, provider)
    ((_, text),) = told(world)
    assert "ended" in text
    (line,) = [
        r for r in caplog.records if "credentials' end is not known cloud=pub" in r.msg % r.args
    ]
    assert line.levelname == ("INFO" if isinstance(error, TransientError) else "ERROR")


def test_one_that_tells_no_end_and_one_that_fails_hide_no_other(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    class Silent:
        """Whose credentials have no end, as far as it can tell."""

    failing = Ending(None)
    failing.error = TransientError("b", "Busy", "later")
    others = {"a": Silent(), "b": failing, "c": Ending(None), "pub": Ending(world.now + 60)}
    site = world.site
    CredentialsEnd(dataclasses.replace(site, providers=others), Inline()).look()
    assert [h.name for h in world.ledger.health.all()] == ["credentials of pub"]
    assert caplog.text == "", "nor is either of them a fault"


def test_status_names_them_as_a_problem(world: World) -> None:
    looked(world, Ending(world.now + 600))
    (problem,) = [h.named_error for h in world.ledger.health.all() if h.error]
    assert problem.startswith("credentials of pub: end in 10 min")
