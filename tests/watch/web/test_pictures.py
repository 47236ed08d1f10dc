"""Ten states of the page, each brought about by the real daemon, as somebody has looked at them.

``scripts/test tests/watch/web/test_pictures.py --update-screens`` takes the pictures of docs/ anew: look at
each that changed.
"""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
from cost_cases import NOW as LATER
from cost_cases import book, config_file, machine
from machine_cases import machine_with
from PIL import Image
from selenium.webdriver import Chrome

from slurm_elastic.cli.reports import cost
from slurm_elastic.config import configfile
from slurm_elastic.model.cluster import Market
from slurm_elastic.model.memory import ChargedRun
from slurm_elastic.watch.door.questions import CostAsk
from slurm_elastic.watch.door.records import read_costs
from slurm_elastic.watch.view.day import DAY_S, day_view
from slurm_elastic.watch.web.documents import Query
from tests.screens.theatre import Theatre, open_theatre
from tests.watch.web.stage import Page, served

pytestmark = pytest.mark.release

DOCS = Path(__file__).parents[3] / "docs"


class State(NamedTuple):
    """A place in a situation, how wide and how dark, and words that are read there."""

    situation: str
    place: str
    width: int
    dark: bool
    read: str


STATES = {
    "calm": State("healthy", "#/", 1600, False, "All is calm"),
    "small": State("burst", "#/", 400, False, "booting: times out in"),
    "many": State("many", "#/", 1600, True, "20 machines (pub101, pub301, pub501 and 17 more)"),
    "paused": State("breaker", "#/", 1600, False, "IS PAUSED"),
    "disk": State("full-disk", "#/", 400, True, "Act now"),
    "waits": State("out-of-capacity", "#/explain/50", 1600, False, "Why it gets no machine"),
    "migration": State(
        "notice-and-migration", "#/migrations", 1600, True, "Jobs that are saved or moved now"
    ),
    "day": State("healthy", "#/day", 1600, False, "Dollars an hour"),
    "cost": State("healthy", "#/cost/account", 400, False, "Checked: parts sum to the charge"),
    "doctor": State("credentials-expired", "#/doctor", 1600, True, "to put right"),
}


@pytest.fixture(scope="module")
def theatre(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Theatre]:
    with open_theatre(tmp_path_factory.mktemp("s")) as opened:
        yield opened


def sources(theatre: Theatre, situation: str, directory: Path) -> dict[str, Callable[[Query], str]]:
    """The documents that the commands print there; a day and costs that are worth a look."""
    player = threading.Lock()

    def printed(*words: str) -> Callable[[Query], str]:
        def made(query: Mapping[str, str]) -> str:
            subject = [query["subject"]] if "subject" in query else []
            with player:
                return theatre.plain(situation, [*words, *subject], 80)[0]

        return made

    return {
        "status": printed("status", "--json"),
        "explain": printed("explain", "--json"),
        "doctor": printed("doctor", "--quick", "--json"),
        "day": lambda _: day(),
        "cost": lambda _: costs(directory),
    }


def day() -> str:
    """Two bursts of spot machines, on-demand ones between them."""
    chance, machines, runs = random.Random(4), [], []
    for n in range(90):
        market = Market.ON_DEMAND if n % 5 == 0 else Market.SPOT
        begin = LATER - DAY_S + chance.gauss(0.3 if n % 2 else 0.75, 0.06) * DAY_S
        end = begin + chance.uniform(1800, 9000)
        made = machine(f"pub{n}", begin, 0.12 if n % 5 == 0 else 0.04, market=market)
        ended = end if end < LATER else None
        machines.append(
            machine_with(instance=made, pool="burst", registered=begin + 300, ended=ended)
        )
        runs.append(ChargedRun(job=n, begin=begin + 320, end=ended))
    found = day_view(machines, runs, LATER)
    waiting = [max(0, n - 250) // 6 for n in range(found.points)]
    return msgspec.json.encode(msgspec.structs.replace(found, waiting=waiting)).decode()


def costs(directory: Path) -> str:
    config = configfile.load(directory / "slurm-elastic.yaml")
    ask = CostAsk(by=cost.By.ACCOUNT, since=LATER - 7200)
    return json.dumps(cost.document(read_costs(config, ask, LATER)))


@pytest.mark.parametrize("name", STATES)
def test_each_state_is_legible(
    name: str, theatre: Theatre, browser: Chrome, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    config_file(tmp_path)
    book(tmp_path / "state" / "ledger.db").close()
    state = STATES[name]
    with served(sources(theatre, state.situation, tmp_path), fresh=1e3, period=1e3) as address:
        page = Page(browser, address)
        page.complaints()
        page.sized(state.width, dark=state.dark).go(state.place)
        assert state.read in page.text("main")
        assert page.overflow() <= 0
        assert page.axe() == []
        assert page.complaints() == []
        if pytestconfig.getoption("update_screens"):
            path = DOCS / f"page-{name}.png"
            page.shot(path)
            Image.open(path).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(
                path, optimize=True
            )
        browser.get("about:blank")
