"""Each action in a real browser, from the page's own links to the ledger, at a desk and on a phone."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import needs
import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By

from slurm_elastic.cli import save_orders, web
from slurm_elastic.config.configfile import load
from slurm_elastic.model.exclusion import BREAKER, Exclusion
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.slurm.client.prompt import PromptCli
from slurm_elastic.state.ckptstate.orders import DROPS
from slurm_elastic.state.ledger import Ledger
from slurm_elastic.watch.web.documents import Documents
from tests.watch.web.acting_stage import SUDO, acting_page, forwarded
from tests.watch.web.stage import Page

pytestmark = needs.ROOT

PICTURES = os.environ.get("ACT_PICTURES", "")
"""A directory for pictures of each step."""
SIZES = [
    pytest.param(1280, 800, False, id="desk"),
    pytest.param(390, 844, True, id="phone-dark"),
    pytest.param(1280, 800, True, id="desk-dark", marks=pytest.mark.release),
    pytest.param(390, 844, False, id="phone", marks=pytest.mark.release),
]


class Deed(NamedTuple):
    """An action: the values that a person fills in, words of the preview and of the result."""

    values: dict[str, str | bool]
    shown: str
    done: str


DEEDS = {
    "pause": Deed({"scope": "onprem", "for": "2h", "reason": "a new image"},
                  "No new machines in cloud onprem", "cloud onprem is paused by root"),
    "resume": Deed({"scope": ""}, "would end: cloud onprem is paused", "order ended: cloud onprem"),
    "limit": Deed({"scope": "rack", "key": "max_nodes", "value": "1"},
                  "pool rack: max_nodes no limit -> 1", "pool rack: max_nodes is 1 by root"),
    "drain": Deed({"subject": "op[1-2]", "aggressive": True, "max-unavailable": "1"},
                  "jobs are moved", "op[1-2] are drained by root"),
    "replace": Deed({"subject": "rack"}, "Replace pool rack: 2 machines", "being replaced by root"),
    "migrate": Deed({"cloud": "onprem", "to": "spare"}, "Empty cloud onprem", "emptied to spare"),
    "clear": Deed({"subjects": "rack"}, "would be cleared: failed boots of pool rack", "cleared:"),
    "save": Deed({"job": "41"}, "Job 41 of erin on op1 is saved: by signal", "is asked to save"),
}  # fmt: skip


@pytest.fixture
def address(
    file: Path, ledger: Ledger, jobs: list[SlurmJob], open_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[str]:  # fmt: skip
    ledger.exclusions.add(Exclusion(kind=BREAKER, scope="rack", count=3, until=time.time() + 900))
    ledger.health.beat("slurm-elasticd", time.time(), os.getpid())
    (open_path / DROPS).mkdir()
    jobs.append(
        SlurmJob(
            id=41, states=frozenset({"RUNNING"}), nodes=("op1",), start=time.time() - 60,
            user="erin", uid=1000, batch=True, requeue=True, comment="ckpt=signal,saved=file:state",
        )
    )  # fmt: skip

    class Slurm:
        def __init__(self, *_: object) -> None: ...

        def jobs(self) -> list[SlurmJob]:
            return jobs

    monkeypatch.setattr(save_orders, "PromptCli", Slurm)
    config = load(file)
    documents = Documents(web.sources(config, PromptCli(config.slurm), file))
    with (
        acting_page(file, open_path / "page.sock", group=SUDO, documents=documents) as sock,
        forwarded(sock) as address,
    ):
        yield address


@pytest.fixture
def page(address: str, browser: Chrome) -> Iterator[Page]:
    page = Page(browser, address)
    page.complaints(), page.requests()
    yield page
    browser.get("about:blank")


def fill(page: Page, values: dict[str, str | bool]) -> None:
    for name, value in values.items():
        box = page.driver.find_element(By.NAME, name)
        if value is True:
            box.click()
        elif box.tag_name == "select":
            page.js("arguments[0].value = arguments[1]", box, value)
        elif value:
            box.clear()
            box.send_keys(str(value))


def press(page: Page) -> None:
    page.driver.find_element(By.CSS_SELECTOR, "button.main").click()


def look(page: Page, name: str) -> None:
    """Nobody is shut out of it, it fits, and the browser has nothing to complain of."""
    assert page.overflow() <= 0, name
    assert page.axe() == [], name
    if PICTURES:
        page.shot(Path(PICTURES) / f"{name}.png", 2000)


@pytest.mark.parametrize(("width", "height", "dark"), SIZES)
@pytest.mark.parametrize("action", DEEDS)
def test_an_action_from_its_form_to_the_ledger(
    action: str, width: int, height: int, dark: bool, page: Page, ledger: Ledger, open_path: Path
) -> None:
    deed = DEEDS[action]
    page.sized(width, height, dark=dark)
    name = f"{action}-{width}-{'dark' if dark else 'light'}"
    if action == "resume":
        page.driver.get(f"{page.address}act?do=pause&scope=onprem")
        press(page)
        press(page)
        page.wait(lambda: "Done" in page.text("main"))
    page.driver.get(f"{page.address}act")
    page.driver.find_element(By.CSS_SELECTOR, f'main a[href$="do={action}"]').click()
    look(page, f"{name}-1-form")
    values = {"subject": "onprem"} if action == "resume" else deed.values
    fill(page, values)
    press(page)
    page.wait(lambda: deed.shown in page.text("main"))
    look(page, f"{name}-2-preview")
    before = ledger.directives.all()
    press(page)
    page.wait(lambda: deed.done in page.text("main"))
    look(page, f"{name}-3-done")
    if action == "save":
        assert len(list((open_path / DROPS).iterdir())) == 1
    elif action == "clear":
        assert "rack" not in [row.scope for row in ledger.exclusions.breakers()]
    else:
        assert ledger.directives.all() != before
    assert page.complaints() == []


def test_the_page_leads_to_forms_that_are_filled_in(page: Page, ledger: Ledger) -> None:
    page.sized(1280, 800).go()
    page.wait(lambda: "Act" in page.text("nav"))
    look(page, "now-1280-light")
    page.driver.find_element(By.CSS_SELECTOR, '[aria-label="Pause cloud onprem"]').click()
    assert page.js("return document.querySelector('[name=scope]').value") == "onprem"
    press(page)
    press(page)
    page.wait(lambda: "cloud onprem is paused by root" in page.text("main"))
    page.driver.find_element(By.LINK_TEXT, "Now").click()
    page.wait(lambda: "Cloud onprem is paused by root" in page.text("main"))
    page.sized(390, 844, dark=True).go()
    page.wait(lambda: "Act" in page.text("nav"))
    look(page, "now-390-dark")
    tops = page.js("return [...document.querySelectorAll('nav li')].map(li => li.offsetTop)")
    assert len(set(tops)) == 1, "all tabs in one line"
    assert page.complaints() == []


def test_actions_need_no_script(page: Page, ledger: Ledger) -> None:
    page.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        page.driver.get(f"{page.address}act?do=pause")
        page.driver.find_element(By.NAME, "scope").send_keys("rack")
        press(page)
        assert "No new machines in pool rack" in page.driver.page_source
        press(page)
        assert "pool rack is paused by root" in page.driver.page_source
    finally:
        page.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
    assert len(ledger.directives.all()) == 1


def test_loading_the_result_again_does_nothing_twice(
    page: Page, ledger: Ledger
) -> None:
    page.driver.get(f"{page.address}act?do=pause&scope=rack")
    press(page)
    press(page)
    page.wait(lambda: "Done" in page.text("main"))
    for order in ledger.directives.all():
        ledger.directives.end(order.number)
    page.driver.refresh()
    page.wait(lambda: "nothing was done a second time" in page.text("main"))
    assert ledger.directives.all() == ()
