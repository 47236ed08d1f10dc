"""The parts of a job by its feature expression (``--constraint``), as Slurm counts nodes. Pure.

``[pub*3&big*2]`` is three nodes with one feature and two with another: a growth must buy both parts
or none. ``[a|b]`` takes all nodes of one of the two. Expressions of another form are left to Slurm.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Iterator
from typing import NamedTuple

_TOKEN = re.compile(r"\s*(?:(?P<name>[^\s\[\]()*&|,]+)|(?P<mark>[\[\]()*&|,]))")
_EXPRESSION = frozenset("|[]()*")


class Term(NamedTuple):
    """A feature (``name``), or terms joined by one operator, ``&`` or ``|``. ``nodes``: how many
    nodes must have it (0: all). ``is_matching``: the term stands in square brackets.
    """

    name: str = ""
    operator: str = "&"
    terms: tuple[Term, ...] = ()
    nodes: int = 0
    is_matching: bool = False

    def holds(self, features: Collection[str]) -> bool:
        """Whether a node with these features fulfils the term."""
        if self.name:
            return self.name in features
        judge = any if self.operator == "|" else all
        return judge(term.holds(features) for term in self.terms)


class FeatureCount(NamedTuple):
    """A number of nodes of a job that must each have the features of ``term``."""

    nodes: int
    term: Term


@functools.lru_cache(maxsize=1024)
def alternatives(expression: str, nodes: int) -> tuple[tuple[FeatureCount, ...], ...]:
    """Return the ways to serve a job of ``nodes`` nodes, the first choice first. Empty if the
    expression is a plain list of features, or has a form that only Slurm understands.
    """
    if not _EXPRESSION & set(expression):
        return ()
    try:
        term = _Reader(expression).read()
    except ValueError:
        return ()
    # Only in square brackets must all nodes have the same feature; (a|b) may mix them.
    if term.is_matching and term.operator == "|":
        return tuple(_parts(choice, nodes) for choice in term.terms)
    return (_parts(term, nodes),)


def _parts(term: Term, nodes: int) -> tuple[FeatureCount, ...]:
    terms = tuple(_joined_by_and(term))
    counted = [term_of_all for term_of_all in terms if term_of_all.nodes]
    if not counted:
        return (FeatureCount(nodes, term),)
    # A term without a count holds for all nodes, so each part must fulfil it.
    common = Term(terms=tuple(term_of_all for term_of_all in terms if not term_of_all.nodes))
    counted_parts = [
        FeatureCount(term_of_all.nodes, Term(terms=(term_of_all, *common.terms)))
        for term_of_all in counted
    ]
    other_nodes = nodes - sum(counted_part.nodes for counted_part in counted_parts)
    return (
        (*counted_parts, FeatureCount(other_nodes, common))
        if other_nodes > 0
        else tuple(counted_parts)
    )


def _joined_by_and(term: Term) -> Iterator[Term]:
    """All terms that must hold together, without the brackets around them."""
    if term.nodes or term.name or term.operator == "|":
        yield term
        return
    for inner in term.terms:
        yield from _joined_by_and(inner)


class _Reader:
    """Reads one expression from left to right; ValueError for another form."""

    def __init__(self, text: str) -> None:
        self._marks: list[tuple[str, str]] = []
        position = 0
        while position < len(text.rstrip()):
            token = _TOKEN.match(text, position)
            if token is None:
                raise ValueError(text)
            self._marks.append((token["name"] or "", token["mark"] or ""))
            position = token.end()

    def read(self) -> Term:
        term = self._joined()
        if self._marks:
            raise ValueError(str(self._marks))
        return term

    def _joined(self) -> Term:
        terms, operators = [self._counted()], set()
        while self._marks and self._marks[0][1] in ("&", "|", ","):
            operators.add("|" if self._marks.pop(0)[1] == "|" else "&")
            terms.append(self._counted())
        if len(operators) > 1:
            # Slurm evaluates these from left to right with rules of its own.
            raise ValueError("two operators without parentheses")
        return Term(operator=operators.pop(), terms=tuple(terms)) if operators else terms[0]

    def _counted(self) -> Term:
        term = self._single()
        if not self._marks or self._marks[0][1] != "*":
            return term
        self._marks.pop(0)
        number = self._next()[0]
        return term._replace(nodes=int(number))

    def _single(self) -> Term:
        name, mark = self._next()
        if name:
            return Term(name=name)
        closing = {"[": "]", "(": ")"}.get(mark)
        if closing is None:
            raise ValueError(mark)
        term = self._joined()
        if self._next()[1] != closing:
            raise ValueError(mark)
        return term._replace(is_matching=mark == "[")

    def _next(self) -> tuple[str, str]:
        if not self._marks:
            raise ValueError("it breaks off")
        return self._marks.pop(0)
