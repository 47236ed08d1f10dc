"""The remaining steps of a skeleton: the values ``TODO``, with their comments."""

from __future__ import annotations

import re
from collections.abc import Iterator

from slurm_elastic.config.basics.todos import TODO
from slurm_elastic.config.document import KeyPath, YamlDocument

_COMMENT = re.compile(r"(?:^|\s)#\s*TODO:?\s+(.*\S)")


def steps(document: YamlDocument, text: str) -> Iterator[tuple[int, str]]:
    """Yield (line, sentence) of each to-do, in the order of the file.

    A comment that begins with TODO is a step of its own only if a value is still to do: sites have
    such comments for themselves.
    """
    places = {document.line(path): path for path in _paths(document.value, ())}
    for number, line in enumerate(text.splitlines() if places else (), start=1):
        comment = _COMMENT.search(line)
        if number in places:
            step = f": {comment[1]}" if comment else ": give it its value"
            yield number, f"{document.locate(places[number])}: to do{step}"
        elif comment and line.lstrip().startswith("#"):
            yield number, f"to do: {comment[1]}"


def _paths(value: object, path: KeyPath) -> Iterator[KeyPath]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _paths(inner, (*path, key))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _paths(inner, (*path, number))
    elif value == TODO:
        yield path
