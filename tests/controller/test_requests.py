"""The requests of one cloud that wait: none stands in the way of the others, or of its rounds."""

from __future__ import annotations

import errno

import pytest

from slurm_elastic.base.errors import SlurmError
from slurm_elastic.controller.requests import RETRY_PAUSES, RETRY_WAITING_S, Requests
from slurm_elastic.model.slurm import Request
from tests.controller.world import World

SLOW = 1.0
"""Seconds that it takes to act on one."""


@pytest.fixture
def requests(world: World) -> Requests:
    """Eight for nodes that wait for their turn to boot, and then one that ends a machine."""
    for _ in range(8):
        world.program("resume", ["pub1"], {})
    world.program("suspend", ["pub2"], {})
    found = Requests(world.site, world.spool)
    found.take_in()
    return found


def test_each_that_is_due_is_served_once_however_long_that_takes(
    world: World, requests: Requests
) -> None:
    acted: list[str] = []

    def act(request: Request, again: bool) -> bool:
        acted.append(request.kind)
        world.now += SLOW
        assert len(acted) < 100
        return request.kind == "resume"

    assert 8 * SLOW > RETRY_WAITING_S, "the first are due again before the last had theirs"
    for passes in (1, 2, 3):
        assert requests.due("pub")
        requests.serve("pub", act)
        assert acted.count("resume") == 8 * passes
        assert acted.count("suspend") == 1
        world.now += RETRY_WAITING_S


def test_one_that_fails_for_a_while_keeps_no_other_waiting(
    world: World, requests: Requests
) -> None:
    acted: list[str] = []

    def act(request: Request, again: bool) -> bool:
        acted.append(request.kind)
        world.now += 40 * SLOW  # longer than the longest pause
        if request.kind == "resume":
            raise OSError("the cloud does not answer")
        return False

    requests.serve("pub", act)
    assert (acted.count("resume"), acted.count("suspend")) == (8, 1)


def test_hours_without_slurmctld_keep_the_pause_and_the_requests_behind(
    world: World, requests: Requests
) -> None:
    acted: list[str] = []

    def act(request: Request, again: bool) -> bool:
        acted.append(request.id)
        raise SlurmError(("scontrol",), None, "no answer")

    for _ in range(1100):
        acted.clear()
        requests.serve("pub", act)
        assert len(acted) == len(set(acted)) == 9, "each of them is tried"
        assert not requests.due("pub"), "none is tried again at once"
        world.now += RETRY_PAUSES.longest_s


def test_a_state_directory_that_is_away_costs_no_request(
    world: World, requests: Requests, caplog: pytest.LogCaptureFixture
) -> None:
    def act(request: Request, again: bool) -> bool:
        raise OSError(errno.ESTALE, "Stale file handle", "/state/requests")

    for _ in range(10):
        assert len(requests.due("pub")) == 9
        requests.serve("pub", act)
        world.now += RETRY_PAUSES.longest_s
    assert not any(record.exc_info for record in caplog.records), "it is no defect of ours"


@pytest.mark.usefixtures("guarded")
def test_what_the_clouds_threads_share(world: World) -> None:
    world.program("resume", ["pub1"], {})
    waiting = Requests(world.site, world.spool)
    waiting.take_in()
    waiting.serve("pub", lambda request, again: False)
    waiting.take_in()
    assert not waiting.due("pub")
    assert not list(world.spool.pending(set()))
