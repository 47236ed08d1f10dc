"""Sentences for people. Program logic reads the fields of causes, and no sentence."""

from __future__ import annotations

from typing import Never, final


@final
class Sentence:
    """One sentence of ours. It can be shown, and nothing else: it is no ``str``, so that mypy
    refuses to cut or search it, and it cannot be compared, not even with another sentence.
    """

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"Sentence({self._text!r})"

    def __format__(self, spec: str) -> str:
        return format(self._text, spec)

    def __eq__(self, other: object) -> Never:
        raise TypeError("compare the causes, not their sentences")

    __hash__ = None  # type: ignore[assignment]
