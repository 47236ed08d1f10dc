"""Leaves out of a printed text the parts that stand above it on the screen already. Only the
display depends on this.

It compares texts and not causes, because the texts on one screen come from different sources. The
verdicts on pools are sentences of the predicates, and different causes quote the same error of a
cloud or end with the same remedy.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

_LEAST = 40
"""Shorter repeated parts (characters) stay."""


def without_repeats(text: str, printed: Sequence[str]) -> str:
    """The text without the part that was ``printed`` above it.

    That part is a whole printed text, or the end that both texts share, such as a cloud's error.
    """
    for other in filter(lambda one: len(one) >= _LEAST, reversed(printed)):
        if other in text:
            return text.replace(other, "for the same reason")
    end = max((_common_end(other, text) for other in printed), key=len, default="")
    return text if len(end) < _LEAST else f"{text.removesuffix(end)}(see above)"


def _common_end(text: str, other: str) -> str:
    """The longest end that both texts have and that begins at a word."""
    pairs = zip(reversed(text), reversed(other), strict=False)
    length = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    end = other[len(other) - length :]
    if len(end) == len(other) or other[: len(other) - len(end)].endswith(" "):
        return end
    return end.partition(" ")[2]
