from __future__ import annotations

from collections.abc import Iterator

import pytest
from needs import missing
from selenium.webdriver import Chrome

from tests.watch.web.stage import CHROMIUM, DRIVER, chromium


@pytest.fixture(scope="module")
def browser() -> Iterator[Chrome]:
    if not (CHROMIUM and DRIVER):
        pytest.skip(missing("chromium", "chromedriver"))
    with chromium() as driver:
        yield driver
