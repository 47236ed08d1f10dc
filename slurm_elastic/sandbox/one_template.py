"""OpenNebula's template texts as the emulated oned reads them: ``KEY="value"`` lines, or XML.

Its parser's complaints are kept to the letter, so that a client sees what it would really see.
"""

from __future__ import annotations

import re
from xml.etree import ElementTree

Value = str | dict[str, str]
Template = dict[str, list[Value]]
"""Upper-case keys; a vector is a dictionary, and what may stand several times stands in a list."""

_WORD = re.compile(r"\w+")
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL)
_BARE = re.compile(r"[^\n,\]\"]*")


class ParseError(Exception):
    """The text of oned's answer, after "Parse error: "."""


def parse(text: str) -> Template:
    """The attributes of a template text; ParseError as oned words it."""
    stripped = text.strip()
    return _from_xml(stripped) if stripped.startswith("<") else _Lines(text).parse()


def scalars(template: Template) -> dict[str, str]:
    """The plain attributes, the last one of each."""
    return {key: v[-1] for key, v in template.items() if isinstance(v[-1], str)}


def vectors(template: Template, key: str) -> list[dict[str, str]]:
    """The vectors of that name."""
    return [v for v in template.get(key, []) if isinstance(v, dict)]


def _from_xml(text: str) -> Template:
    try:
        root = ElementTree.fromstring(text)  # noqa: S314 - a rehearsal's own client on loopback
    except ElementTree.ParseError:
        raise ParseError("XML Template malformed.") from None
    found: Template = {}
    for child in root:
        value: Value = (
            {c.tag.upper(): c.text or "" for c in child} if len(child) else child.text or ""
        )
        found.setdefault(child.tag.upper(), []).append(value)
    return found


class _Lines:
    """The form ``KEY="value"``, ``VECTOR=[KEY="value",...]``. Between attributes anything that is
    no word is passed over, as oned's own lexer does.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def parse(self) -> Template:
        found: Template = {}
        while key := self._word():
            self._equals()
            self._blanks()
            if self._text.startswith("[", self._at):
                self._at += 1
                found.setdefault(key.upper(), []).append(self._vector())
            else:
                found.setdefault(key.upper(), []).append(self._value())
        return found

    def _vector(self) -> dict[str, str]:
        values: dict[str, str] = {}
        while True:
            key = self._word() or self._fail("$end", "VARIABLE")
            self._equals()
            self._blanks()
            values[key.upper()] = self._value()
            self._blanks()
            mark = self._text[self._at : self._at + 1]
            self._at += 1
            if mark == "]":
                return values
            if mark != ",":
                self._at -= 1
                self._fail("$end" if not mark else "VARIABLE", "COMMA or CBRACKET")

    def _value(self) -> str:
        quoted = _QUOTED.match(self._text, self._at)
        if quoted:
            self._at = quoted.end()
            return quoted[1].replace('\\"', '"')
        bare = _BARE.match(self._text, self._at)
        self._at = bare.end() if bare else self._at
        return bare[0].strip() if bare else ""

    def _word(self) -> str:
        word = _WORD.search(self._text, self._at)
        self._at = word.end() if word else len(self._text)
        return word[0] if word else ""

    def _equals(self) -> None:
        expected = "EQUAL or EQUAL_EMPTY"
        rest = re.compile(r"[^\w=]*").match(self._text, self._at)
        at = rest.end() if rest else self._at
        if self._text.startswith("=", at):
            self._at = at + 1
            return
        word = _WORD.match(self._text, at)
        if word is None:
            self._at = len(self._text)
            self._fail("$end", expected)
        self._at = at
        self._fail("VARIABLE", expected, len(word[0]) if word else 1)

    def _blanks(self) -> None:
        while self._text[self._at : self._at + 1].isspace():
            self._at += 1

    def _fail(self, found: str, expected: str, length: int = 1) -> str:
        """Lines count from 0 and columns from the text's beginning, as oned has it."""
        line = self._text.count("\n", 0, self._at)
        first = self._at + (0 if found == "$end" else 1)
        where = f"at line {line}, columns {first}:{first + length}"
        raise ParseError(f"syntax error, unexpected {found}, expecting {expected} {where}")
