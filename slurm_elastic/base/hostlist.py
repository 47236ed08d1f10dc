"""Slurm hostlists: ``pub[1-3,07],gpu-[a]`` to names and back (scontrol(1), show hostnames).

Pure, so that tests and the simulator need no Slurm. As in Slurm's src/common/hostlist.c, several
bracket groups in one name multiply out, and zero padding is kept.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator

MAX_HOSTS = 100_000
_NAME = re.compile(r"[A-Za-z0-9._-]+")
_GROUP = re.compile(r"\[([^\[\]]*)\]")
_RANGE = re.compile(r"(\d{1,15})(?:-(\d{1,15}))?", re.ASCII)
_DIGITS = "0123456789"
_SEPARATORS = re.compile(r"[,\s]+")


class HostlistError(ValueError):
    """The text is not a hostlist. ``complaint``: where, and what was expected, without the text."""

    def __init__(self, text: str, complaint: str) -> None:
        super().__init__(f"hostlist {text!r}: {complaint}")
        self.complaint = complaint


def expand(text: str) -> list[str]:
    """The names in ``text``, in its order, duplicates kept. Raises HostlistError."""
    if _NAME.fullmatch(text):  # most texts are the name of one node
        return [text]
    return list(_expanded(text))


def expand_of_user(text: str) -> tuple[str, ...]:
    """The names in a text that a user wrote and that Slurm shows as written, such as ExcNodeList.

    As in Slurm's hostlist_create(), blanks and empty items only separate names. The result
    is empty for other texts: one user's text must not make the records of all users unreadable.
    """
    separated = _SEPARATORS.sub(",", text).strip(",")
    try:
        return tuple(expand(separated)) if separated else ()
    except HostlistError:
        return ()


@functools.lru_cache(maxsize=128)
def _expanded(text: str) -> tuple[str, ...]:
    """The lists of pools are expanded many times, so the results are cached."""
    names: list[str] = []
    for item in _split(text):
        names.extend(_expand_item(item, text))
        if len(names) > MAX_HOSTS:
            raise HostlistError(text, f"names more than {MAX_HOSTS} hosts")
    return tuple(names)


def compress(names: Iterable[str]) -> str:
    """The shortest-by-prefix hostlist of ``names``: sorted, duplicates dropped."""
    unique_names = set(names)
    if len(unique_names) == 1:  # most lists are one node
        return unique_names.pop()
    return ",".join(_runs(unique_names))


def chunks(names: Iterable[str], max_chars: int) -> list[str]:
    """Compressed hostlists of at most ``max_chars`` characters, for argv and tags."""
    lists: list[str] = []
    for item in _runs(names):
        for piece in _fit(item, max_chars):
            if lists and len(lists[-1]) + 1 + len(piece) <= max_chars:
                lists[-1] += "," + piece
            else:
                lists.append(piece)
    return lists


def _split(text: str) -> Iterator[str]:
    depth, item = 0, ""
    for char in text.strip():
        depth += {"[": 1, "]": -1}.get(char, 0)
        if depth not in (0, 1):
            raise HostlistError(text, "unbalanced or nested brackets")
        if char == "," and depth == 0:
            yield item
            item = ""
        else:
            item += char
    if depth:
        raise HostlistError(text, "bracket is not closed")
    yield item


def _expand_item(item: str, text: str) -> Iterator[str]:
    if not item:
        raise HostlistError(text, "empty name")
    variants_of_parts: list[list[str]] = []
    end_of_group = 0
    for match in _GROUP.finditer(item):
        variants_of_parts += [[item[end_of_group : match.start()]], _expand_group(match[1], text)]
        end_of_group = match.end()
    variants_of_parts.append([item[end_of_group:]])
    # Checked before the groups multiply out, because the product may not fit into memory.
    if math.prod(len(variants) for variants in variants_of_parts) > MAX_HOSTS:
        raise HostlistError(text, f"names more than {MAX_HOSTS} hosts")
    names = map("".join, itertools.product(*variants_of_parts))
    first_name = next(names)
    if not _NAME.fullmatch(first_name):  # the other names differ from it only in digits
        raise HostlistError(text, f"{first_name!r} is not a host name")
    yield first_name
    yield from names


def _expand_group(group: str, text: str) -> list[str]:
    numbers: list[str] = []
    for piece in group.split(","):
        match = _RANGE.fullmatch(piece)
        if not match:
            raise HostlistError(text, f"{piece!r} is not a number or a range")
        low, high = match[1], match[2] or match[1]
        if int(high) < int(low):
            raise HostlistError(text, f"range {piece!r} runs backwards")
        if int(high) - int(low) >= MAX_HOSTS:
            raise HostlistError(text, f"range {piece!r} is over {MAX_HOSTS} hosts")
        numbers += [str(n).zfill(len(low)) for n in range(int(low), int(high) + 1)]
        if len(numbers) > MAX_HOSTS:
            raise HostlistError(text, f"names more than {MAX_HOSTS} hosts")
    return numbers


def _runs(names: Iterable[str]) -> list[str]:
    """One item per prefix and number width; ``p[1-3,7]`` or a bare name."""
    groups: defaultdict[tuple[str, int], set[int]] = defaultdict(set)
    plain: set[str] = set()
    for name in names:
        prefix = name.rstrip(_DIGITS)
        tail = name[len(prefix) :]
        if not 0 < len(tail) <= 15:
            plain.add(name)
            continue
        # Width matters only where it pads: p9 and p10 belong together, p09 and p9 do not.
        width = len(tail) if tail[0] == "0" and len(tail) > 1 else 0
        groups[prefix, width].add(int(tail))
    _merge_padded(groups)
    items = [_format(prefix, width, nums) for (prefix, width), nums in groups.items()]
    return sorted(plain) + [item for item in sorted(items) if item]


def _merge_padded(groups: dict[tuple[str, int], set[int]]) -> None:
    """Let unpadded numbers join padded ones of the same width, as the 10 of p08,p09,p10."""
    for prefix, width in [key for key in groups if key[1]]:
        unpadded = groups.get((prefix, 0), set())
        same_width = {n for n in unpadded if len(str(n)) == width}
        groups[prefix, width] |= same_width
        unpadded -= same_width


def _format(prefix: str, width: int, numbers: set[int]) -> str:
    if not numbers:
        return ""
    pieces = []
    for low, high in _ranges(sorted(numbers)):
        a, b = str(low).zfill(width), str(high).zfill(width)
        pieces.append(a if low == high else f"{a}-{b}")
    if len(pieces) == 1 and "-" not in pieces[0]:
        return prefix + pieces[0]
    return f"{prefix}[{','.join(pieces)}]"


def _ranges(numbers: list[int]) -> Iterator[tuple[int, int]]:
    start = previous = numbers[0]
    for number in numbers[1:]:
        if number != previous + 1:
            yield start, previous
            start = number
        previous = number
    yield start, previous


def _fit(item: str, max_chars: int) -> Iterator[str]:
    """Cut one ``prefix[...]`` item at commas so that each part fits."""
    if len(item) <= max_chars or "[" not in item:
        yield item
        return
    prefix, _, inner = item.partition("[")
    current = ""
    for piece in inner.rstrip("]").split(","):
        longer = f"{current},{piece}" if current else piece
        if current and len(prefix) + 2 + len(longer) > max_chars:
            yield f"{prefix}[{current}]"
            current = piece
        else:
            current = longer
    yield f"{prefix}[{current}]"
