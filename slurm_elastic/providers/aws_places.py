"""Which node a machine of a fleet is. Pure.

``AmiLaunchIndex`` counts the machines of one type in one zone, so in a fleet it does not tell them
apart. The machine's place in the launch's list of nodes is therefore tagged, after the launch,
digit by digit: ``slurm-elastic:place-0`` is the first digit, and so on for the
``slurm-elastic:places`` digits that the launch's own tags announce. One call gives all machines
with a digit theirs, so 1000 machines take 30 calls instead of 1000. A machine that lacks a digit
has no place yet: it waits (aws_boothook), and it ends itself if none comes.

Places go to ids in their order. So a launch that is repeated, after an answer or a part of the tags
was lost, gives each machine the place that it has or was meant to have.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

PLACES = "slurm-elastic:places"
PLACE = "slurm-elastic:place-"


def width(count: int) -> int:
    """How many digits the places of so many nodes have."""
    return len(str(max(count - 1, 0)))


def place_of(tags: Mapping[str, str]) -> int | None:
    """The place that the tags of a fleet's machine give it; None while one is missing."""
    digits = "".join(tags.get(f"{PLACE}{n}", "?") for n in range(_announced(tags)))
    return int(digits) if digits.isascii() and digits.isdigit() else None


def in_fleet(tags: Mapping[str, str]) -> bool:
    """Whether the machine's place is told by tags and not by its launch index."""
    return PLACES in tags


def _announced(tags: Mapping[str, str]) -> int:
    text = tags.get(PLACES, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) == 1 else 0


def assigned(
    ids: Iterable[str], taken: Mapping[str, int], count: int
) -> tuple[dict[str, int], list[str]]:
    """Places for those of ``ids`` that have none in ``taken``; and the ids for which there is none,
    as there are only ``count``.
    """
    free = sorted(set(range(count)) - set(taken.values()))
    waiting = sorted(set(ids) - set(taken))
    return dict(zip(waiting, free, strict=False)), waiting[len(free) :]


def tagging(places: Mapping[str, int], count: int) -> Iterator[tuple[str, str, Sequence[str]]]:
    """The calls that tag ``places`` of so many nodes: key, value, and the ids that get it."""
    for n in range(width(count)):
        by_digit: dict[str, list[str]] = {}
        for id_, place in places.items():
            by_digit.setdefault(str(place).zfill(width(count))[n], []).append(id_)
        for digit, some in sorted(by_digit.items()):
            yield f"{PLACE}{n}", digit, some
