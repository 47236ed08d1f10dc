"""The terms of purchases by the file alone."""

from __future__ import annotations

import pytest

from tests.chaos.drawn_site import drawn_document
from tests.drawn.site_document import read_values
from tests.oracle.meter import Terms, terms_of


@pytest.mark.parametrize(
    ("site", "cloud", "pool", "increment"),
    [
        (None, None, None, 1),
        ("1h", None, None, 3600),
        ("1h", "60s", None, 60),
        ("1h", "60s", "1s", 1),
    ],
)
def test_the_narrowest_section_says_how_much_is_billed_at_a_time(
    site: str | None, cloud: str | None, pool: str | None, increment: int
) -> None:
    document = drawn_document(1, ())
    where = (document, document["clouds"][1], document["pools"][1])
    for section, value in zip(where, (site, cloud, pool), strict=True):
        section["policies"]["billing_increment"] = value
    terms = terms_of(read_values(document), "pub1", "small")
    assert terms == Terms(increment, document["clouds"][1]["types"]["small"]["price"])
