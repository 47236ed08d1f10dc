"""To-dos of a skeleton that ``init --cloud`` wrote: values that are ``TODO``, and their comments.

A cloud with to-dos is not in use. The services and the commands that fetch the missing values, such
as ``image upload``, accept the file; checks and ``conf install`` do not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec import Struct

from slurm_elastic.config.document import KeyPath, YamlDocument

TODO = "TODO"
_COMMENT = re.compile(r"(?:^|\s)#\s*TODO:?\s+(.*\S)")


def keys_left(settings: Struct) -> tuple[str, ...]:
    """The keys of a cloud whose values, or a part of them, are to do."""
    return tuple(name for name in settings.__struct_fields__ if _is_left(getattr(settings, name)))


def _is_left(value: object) -> bool:
    if isinstance(value, dict):
        return TODO in value.values()
    return value == TODO or (isinstance(value, tuple) and TODO in value)


def value_at(document: YamlDocument, path: KeyPath) -> object:
    """The value at that path of the file, None if there is none."""
    here = document.value
    for step in path:
        if isinstance(here, dict):
            here = here.get(step)
        elif isinstance(here, list) and isinstance(step, int) and step < len(here):
            here = here[step]
        else:
            return None
    return here


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
