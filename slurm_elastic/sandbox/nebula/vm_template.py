"""Parses OpenNebula's template texts for the emulated oned: ``KEY="value"`` lines, or XML.

Error messages are those of oned's own parser, so that a client gets the real text.
"""

from __future__ import annotations

import re
from xml.etree import ElementTree

Value = str | dict[str, str]
Template = dict[str, list[Value]]
"""Values by upper-case key. A vector is a dictionary. Each key has a list, because it may occur
several times.
"""

_WORD = re.compile(r"\w+")
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL)
_BARE = re.compile(r"[^\n,\]\"]*")


class ParseError(Exception):
    """The text of oned's error after "Parse error: "."""


def parse(text: str) -> Template:
    """Parse a template text. Raises ParseError with oned's message."""
    stripped = text.strip()
    return _from_xml(stripped) if stripped.startswith("<") else _Lines(text).parse()


def scalars(template: Template) -> dict[str, str]:
    """Return the plain attributes; the last value of each."""
    return {key: v[-1] for key, v in template.items() if isinstance(v[-1], str)}


def vectors(template: Template, key: str) -> list[dict[str, str]]:
    """Return the vectors of that name."""
    return [v for v in template.get(key, []) if isinstance(v, dict)]


def _from_xml(text: str) -> Template:
    try:
        root = ElementTree.fromstring(text)  # noqa: S314 - a rehearsal's own client on loopback
    except ElementTree.ParseError:
        raise ParseError("XML Template malformed.") from None
    attributes: Template = {}
    for child in root:
        value: Value = (
            {c.tag.upper(): c.text or "" for c in child} if len(child) else child.text or ""
        )
        attributes.setdefault(child.tag.upper(), []).append(value)
    return attributes


class _Lines:
    """Parser of the form ``KEY="value"``, ``VECTOR=[KEY="value",...]``. Between attributes it skips
    all characters that do not begin a word, as oned's own lexer does.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0

    def parse(self) -> Template:
        attributes: Template = {}
        while key := self._word():
            self._equals()
            self._blanks()
            if self._text.startswith("[", self._position):
                self._position += 1
                attributes.setdefault(key.upper(), []).append(self._vector())
            else:
                attributes.setdefault(key.upper(), []).append(self._value())
        return attributes

    def _vector(self) -> dict[str, str]:
        values: dict[str, str] = {}
        while True:
            key = self._word() or self._fail("$end", "VARIABLE")
            self._equals()
            self._blanks()
            values[key.upper()] = self._value()
            self._blanks()
            mark = self._text[self._position : self._position + 1]
            self._position += 1
            if mark == "]":
                return values
            if mark != ",":
                self._position -= 1
                self._fail("$end" if not mark else "VARIABLE", "COMMA or CBRACKET")

    def _value(self) -> str:
        quoted = _QUOTED.match(self._text, self._position)
        if quoted:
            self._position = quoted.end()
            return quoted[1].replace('\\"', '"')
        bare = _BARE.match(self._text, self._position)
        self._position = bare.end() if bare else self._position
        return bare[0].strip() if bare else ""

    def _word(self) -> str:
        word = _WORD.search(self._text, self._position)
        self._position = word.end() if word else len(self._text)
        return word[0] if word else ""

    def _equals(self) -> None:
        expected = "EQUAL or EQUAL_EMPTY"
        separator = re.compile(r"[^\w=]*").match(self._text, self._position)
        position = separator.end() if separator else self._position
        if self._text.startswith("=", position):
            self._position = position + 1
            return
        word = _WORD.match(self._text, position)
        if word is None:
            self._position = len(self._text)
            self._fail("$end", expected)
        self._position = position
        self._fail("VARIABLE", expected, len(word[0]) if word else 1)

    def _blanks(self) -> None:
        while self._text[self._position : self._position + 1].isspace():
            self._position += 1

    def _fail(self, unexpected: str, expected: str, length: int = 1) -> str:
        """Raise ParseError. As in oned, lines count from 0, and columns from the text's
        beginning.
        """
        line = self._text.count("\n", 0, self._position)
        first_column = self._position + (0 if unexpected == "$end" else 1)
        where = f"at line {line}, columns {first_column}:{first_column + length}"
        raise ParseError(f"syntax error, unexpected {unexpected}, expecting {expected} {where}")
