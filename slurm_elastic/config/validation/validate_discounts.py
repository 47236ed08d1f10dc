"""Checks that the discounts and fees of a cloud fit its types and markets. Pure."""

from __future__ import annotations

from fnmatch import filter as names_like

from slurm_elastic.config.clouds import CloudSettings
from slurm_elastic.config.decode import describe, nearest
from slurm_elastic.config.document import KeyPath, shown
from slurm_elastic.config.partial import Draft
from slurm_elastic.config.sections.discounts import Discount
from slurm_elastic.model.cluster import Location, Market

_MARKETS = (Market.ON_DEMAND, Market.SPOT)


def check_discounts(draft: Draft) -> None:
    """Report all problems of the discounts of all clouds."""
    for i, cloud in draft.clouds.items():
        path: KeyPath = ("clouds", i, "discounts")
        if cloud.discounts and cloud.location is not Location.PUBLIC:
            expected = "none: types of a cloud on-premises have the prices that the site pays"
            draft.problems.add(path, "discounts", expected)
            continue
        for n, entry in enumerate(cloud.discounts):
            _entry(draft, (*path, n), cloud, entry)


def _entry(draft: Draft, path: KeyPath, cloud: CloudSettings, entry: Discount) -> None:
    if not (entry.discount or entry.fee):
        draft.problems.add(path, "neither discount nor fee", "one of them above 0")
    if entry.discount == 1:
        expected = "below 1: the spending cap of a public cloud counts with the price that is left"
        draft.problems.add((*path, "discount"), describe(entry.discount), expected)
    for k, market in enumerate(entry.markets):
        if market not in cloud.markets or market not in _MARKETS:
            markets = ", ".join(m for m in _MARKETS if m in cloud.markets)
            expected = f"one of {markets}: the price of a reservation is its contract's"
            draft.problems.add((*path, "markets", k), shown(market), expected)
    # The types of a catalogue are not in the file.
    if cloud.catalogued or not cloud.shapes:
        return
    for k, name in enumerate(entry.types):
        if not names_like(cloud.shapes, name):
            expected = f"a type of cloud {cloud.name} or a pattern: one of"
            expected += f" {', '.join(cloud.shapes)}"
            hint = nearest(name, cloud.shapes)
            draft.problems.add((*path, "types", k), shown(name), expected, hint)
