"""Checks requests and answers against Google's own description of its API (the discovery document
of the package google-api-python-client). Without this package nothing is checked.
"""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

_DOCUMENT = "discovery_cache/documents/compute.v1.json"
_OUTPUT_ONLY = re.compile(r"\[Output Only\]|Output only\.")
_INTEGER = re.compile(r"-?[0-9]+")
_PLAIN_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "boolean": bool,
    "integer": int,
    "number": (int, float),
    "string": str,
}


@cache
def document() -> Mapping[str, Any] | None:
    """Return Google's description of Compute Engine v1; None if it is not installed."""
    spec = importlib.util.find_spec("googleapiclient")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(folder) / _DOCUMENT
        if path.exists():
            found: Mapping[str, Any] = json.loads(path.read_bytes())
            return found
    return None


@cache
def _methods() -> tuple[tuple[re.Pattern[str], str, Mapping[str, Any]], ...]:
    found = []
    for resource in (document() or {}).get("resources", {}).values():
        for method in resource.get("methods", {}).values():
            pattern = re.sub(r"\\{\+?\w+\\}", "[^/]+", re.escape(method["path"]))
            found.append((re.compile(pattern), method["httpMethod"], method))
    return tuple(found)


def method_of(verb: str, path: str) -> Mapping[str, Any] | None:
    """Return Google's description of the method for a path below the API's version. A path with a
    fixed word wins over a path with a parameter in its place.
    """
    fitting = [m for pattern, v, m in _methods() if v == verb and pattern.fullmatch(path)]
    return min(fitting, key=lambda method: method["path"].count("{"), default=None)


def faults_of_request(verb: str, path: str, query: Mapping[str, str], body: object) -> list[str]:
    """Return what Google would not understand in a request; empty if nothing."""
    found = document()
    if found is None:
        return []
    method = method_of(verb, path)
    if method is None:
        return [f"{verb} {path}: no such method"]
    known = {*method.get("parameters", ()), *found["parameters"]}
    faults = [f"{method['id']}: unknown parameter {name}" for name in query if name not in known]
    schema = method.get("request", {}).get("$ref")
    if schema is None and body is not None:
        faults.append(f"{method['id']}: takes no body")
    elif schema is not None:
        faults += [f"{method['id']}: {f}" for f in _faults(found, {"$ref": schema}, body, "body")]
    return faults


def faults_of_answer(verb: str, path: str, answer: object) -> list[str]:
    """Return what our answer has that Google's would not have."""
    found, method = document(), method_of(verb, path)
    if found is None or method is None or "response" not in method:
        return []
    return [f"answer of {method['id']}: {f}"
            for f in _faults(found, method["response"], answer, "", answer=True)]  # fmt: skip


def _faults(
    found: Mapping[str, Any],
    schema: Mapping[str, Any],
    value: object,
    place: str,
    *,
    answer: bool = False,
) -> Iterator[str]:
    if "$ref" in schema:
        schema = found["schemas"][schema["$ref"]]
    kind = schema.get("type")
    if kind == "object":
        yield from _faults_of_object(found, schema, value, place, answer=answer)
    elif kind == "array":
        if not isinstance(value, list):
            yield f"{place}: no list"
            return
        for number, item in enumerate(value):
            where = f"{place}[{number}]"
            yield from _faults(found, schema["items"], item, where, answer=answer)
    elif kind in _PLAIN_TYPES:
        yield from _faults_of_text(schema, value, place)


def _faults_of_object(
    found: Mapping[str, Any],
    schema: Mapping[str, Any],
    value: object,
    place: str,
    *,
    answer: bool,
) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{place}: no object"
        return
    properties, more = schema.get("properties", {}), schema.get("additionalProperties")
    for name, item in value.items():
        of_name, where = properties.get(name, more), f"{place}.{name}"
        if of_name is None:
            yield f"{where}: no such field"
        elif not answer and _OUTPUT_ONLY.search(str(of_name.get("description", ""))):
            yield f"{where}: only Google sets it"
        else:
            yield from _faults(found, of_name, item, where, answer=answer)


def _faults_of_text(schema: Mapping[str, Any], value: object, place: str) -> Iterator[str]:
    kind = str(schema["type"])
    # A boolean is a kind of integer in Python.
    if not isinstance(value, _PLAIN_TYPES[kind]) or (
        isinstance(value, bool) != (kind == "boolean")
    ):
        yield f"{place}: {value!r} is no {kind}"
    elif schema.get("format") in ("int64", "uint64") and not _INTEGER.fullmatch(str(value)):
        yield f"{place}: {value!r} is no number in quotes"
    elif "enum" in schema and value not in schema["enum"]:
        yield f"{place}: {value!r} is none of {', '.join(schema['enum'])}"
