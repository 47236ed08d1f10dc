"""Each action in a real browser, from the page's own links to the ledger, at a desk and on a phone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import needs
import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By

from slurm_elastic.state.ckptstate.orders import DROPS
from slurm_elastic.state.ledger import Ledger
from tests.watch.web.acting_stage import DEEDS
from tests.watch.web.stage import Page

pytestmark = needs.ROOT

PICTURES = os.environ.get("ACT_PICTURES", "")
"""A directory for pictures of each step."""
SIZES = [
    pytest.param(1280, 800, False, id="desk", marks=pytest.mark.release),
    pytest.param(390, 844, True, id="phone-dark"),
    pytest.param(1280, 800, True, id="desk-dark", marks=pytest.mark.release),
    pytest.param(390, 844, False, id="phone", marks=pytest.mark.release),
]


@pytest.fixture
def page(acting_address: str, browser: Chrome) -> Iterator[Page]:
    page = Page(browser, acting_address)
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


def press_twice(page: Page) -> None:
    """The form's button, and the preview's once it is there."""
    press(page)
    page.wait(lambda: "It would do this" in page.text("main"))
    press(page)


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
        press_twice(page)
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
    assert page.js("return document.querySelector('[name=scope]').value") == "cloud:onprem"
    press_twice(page)
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
        page.wait(lambda: "No new machines in pool rack" in page.driver.page_source)
        press(page)
        page.wait(lambda: "pool rack is paused by root" in page.driver.page_source)
    finally:
        page.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
    assert len(ledger.directives.all()) == 1


def test_loading_the_result_again_does_nothing_twice(page: Page, ledger: Ledger) -> None:
    page.driver.get(f"{page.address}act?do=pause&scope=rack")
    press_twice(page)
    page.wait(lambda: "Done" in page.text("main"))
    for order in ledger.directives.all():
        ledger.directives.end(order.number)
    page.driver.refresh()
    page.wait(lambda: "nothing was done a second time" in page.text("main"))
    assert ledger.directives.all() == ()
