"""The page and its actions in Debian's Firefox: no error of a script, nothing too wide."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import needs
import pytest

from slurm_elastic.state.ckptstate.orders import DROPS
from slurm_elastic.state.ledger import Ledger
from tests.watch.web.acting_stage import DEEDS
from tests.watch.web.firefox import FIREFOX, Firefox, firefox

pytestmark = [needs.ROOT, pytest.mark.release]

PICTURES = os.environ.get("ACT_PICTURES", "")
PAGES = {
    "#/": "Clouds", "#/day": "Machines paid", "#/explain/op1": "where it is", "#/cost": "Cost by",
    "#/migrations": "Checkpoints", "act": "Act",
}  # fmt: skip


@pytest.fixture(scope="module")
def fox() -> Iterator[Firefox]:
    if not FIREFOX:
        pytest.skip(needs.missing("firefox-esr"))
    with firefox() as browser:
        yield browser


def fill(fox: Firefox, values: dict[str, str | bool]) -> None:
    fox.js(
        """
        for (const [name, value] of Object.entries(arguments[0])) {
          const box = document.querySelector(`main [name="${name}"]`);
          if (value === true) box.checked = true; else box.value = value;
        }
        """,
        values,
    )


@pytest.mark.parametrize(("width", "height", "dark"), [(1280, 800, False), (390, 844, True)])
def test_every_page_is_whole(
    fox: Firefox, acting_address: str, width: int, height: int, dark: bool
) -> None:
    fox.sized(width, height, dark=dark)
    fox.complaints(acting_address)
    for place, words in PAGES.items():
        fox.go("about:blank")
        fox.go(f"{acting_address}{place}")
        fox.wait(lambda words=words: words in fox.text("main"))
        assert abs(fox.js("return innerWidth") - width) <= 2
        assert fox.overflow() <= 0, place
        if PICTURES:
            name = place.strip("#/").replace("/", "-") or "now"
            fox.shot(Path(PICTURES) / f"firefox-{name}-{width}.png")
    assert fox.complaints(acting_address) == []


@pytest.mark.parametrize("action", DEEDS)
def test_an_action_from_its_form_to_the_ledger(
    action: str, fox: Firefox, acting_address: str, ledger: Ledger, open_path: Path
) -> None:
    fox.sized(390, 844, dark=False)
    fox.complaints(acting_address)
    if action == "resume":
        fox.go(f"{acting_address}act?do=pause&scope=onprem")
        fox.click("button.main")
        fox.click("button.main")
        fox.wait(lambda: "Done" in fox.text())
    fox.go(f"{acting_address}act")
    fox.click(f'main a[href$="do={action}"]')
    fill(fox, {"subject": "onprem"} if action == "resume" else DEEDS[action].values)
    fox.click("button.main")
    fox.wait(lambda: DEEDS[action].shown in fox.text())
    before = ledger.directives.all()
    fox.click("button.main")
    fox.wait(lambda: DEEDS[action].done in fox.text())
    assert fox.overflow() <= 0
    if PICTURES:
        fox.shot(Path(PICTURES) / f"firefox-{action}.png")
    if action == "save":
        assert len(list((open_path / DROPS).iterdir())) == 1
    elif action == "clear":
        assert "rack" not in [row.scope for row in ledger.exclusions.breakers()]
    else:
        assert ledger.directives.all() != before
    assert fox.complaints(acting_address) == []
