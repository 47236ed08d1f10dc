"""Reads lists that OpenStack gives page by page, each page after the last id of the one before."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from slurm_elastic.base.errors import TransientError
from slurm_elastic.providers.openstack.errors import translated

Page = tuple[Sequence[Mapping[str, Any]], bool]
"""The records of a page, and whether the answer says that there are more. The site may have set
smaller pages than we ask for, so a short page proves nothing.
"""


def marker_pages(cloud: str, read: Callable[[str], Page]) -> Iterator[Mapping[str, Any]]:
    """The records of all pages, each once. ``read`` gets the page after an id; "": the first page.

    TransientError if a page that is not the last has no new record. A proxy that drops the query of
    a URL answers the first page for ever, and then the list is incomplete.
    """
    seen_ids: set[str] = set()
    marker = ""
    while True:
        page, has_more = read(marker)
        with translated(cloud):
            # A deletion between two requests can move a record to the next page.
            new_records = [record for record in page if record["id"] not in seen_ids]
            seen_ids.update(record["id"] for record in new_records)
        yield from new_records
        if not has_more:
            return
        # Also an empty page: the rest of the list cannot be read without an id to continue from.
        if not new_records:
            raise TransientError(cloud, "RepeatedPage", "the cloud repeats a page of a list")
        marker = str(page[-1]["id"])


def has_next(answer: Mapping[str, Any], key: str) -> bool:
    """Whether nova's answer has a link to the next page."""
    return any(link["rel"] == "next" for link in answer.get(key, ()))
