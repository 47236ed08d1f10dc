"""Checks requests against the models of azure-mgmt-compute, Microsoft's own client, if that package
is installed. It refuses properties that are unknown or read-only, words that an enumeration lacks,
and requests for another version of the interface than that of the models.
"""

from __future__ import annotations

import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from functools import cache
from importlib import import_module
from types import ModuleType, UnionType
from typing import Any
from urllib.parse import parse_qs, urlsplit

try:
    MODELS: ModuleType | None = import_module("azure.mgmt.compute.models")
except ImportError:
    MODELS = None

_OPERATIONS = "azure.mgmt.compute.operations._operations"
CREATE, UPDATE = "VirtualMachine", "VirtualMachineUpdate"
_INCOMPLETE = "VirtualMachineSizeTypes"
"""An enumeration that lacks all newer sizes. Microsoft's own page tells to list the sizes."""


@cache
def version() -> str:
    """The version of the interface that the models describe. Empty without the package."""
    if MODELS is None:
        return ""
    build = import_module(_OPERATIONS).build_virtual_machines_list_request
    request = build(resource_group_name="group", subscription_id="subscription")
    return str(parse_qs(urlsplit(request.url).query)["api-version"][0])


def mistakes(model: str, body: Mapping[str, Any]) -> list[str]:
    """The mistakes of a request's body, each with the path of the property. Empty without the
    package.
    """
    return [] if MODELS is None else list(_mistakes(getattr(MODELS, model), body, ""))


def _mistakes(model: Any, value: object, path: str) -> Iterator[str]:  # noqa: ANN401 - the SDK's class
    if not isinstance(value, Mapping):
        yield f"{path}: not an object"
        return
    fields = _fields(model)
    for key, inner in value.items():
        if key not in fields:
            yield f"{path}/{key}: unknown"
            continue
        visibility, annotation = fields[key]
        if visibility == ["read"]:
            yield f"{path}/{key}: read-only"
            continue
        yield from _of_type(annotation, inner, f"{path}/{key}")


def _of_type(annotation: Any, value: object, path: str) -> Iterator[str]:  # noqa: ANN401
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, UnionType):
        yield from _of_union(arguments, value, path)
    elif origin is list and isinstance(value, list):
        yield from _of_items(arguments[0], enumerate(value), path)
    elif origin is dict and isinstance(value, Mapping):
        yield from _of_items(arguments[1], value.items(), path)
    elif _is_model(annotation):
        yield from _mistakes(annotation, value, path)
    elif not _fits(annotation, value):
        yield f"{path}: {value!r} is not {getattr(annotation, '__name__', annotation)}"


def _of_items(annotation: Any, items: Iterable[tuple[object, object]], path: str) -> Iterator[str]:  # noqa: ANN401
    for key, inner in items:
        yield from _of_type(annotation, inner, f"{path}/{key}")


def _of_union(members: Sequence[Any], value: object, path: str) -> Iterator[str]:
    chosen = [each for each in members if each is not type(None)]
    enumerations = [e for e in chosen if isinstance(e, type) and issubclass(e, Enum)]
    if any(e.__name__ == _INCOMPLETE for e in enumerations):
        return
    words = {str(member.value) for e in enumerations for member in e}
    if words and value not in words:
        yield f"{path}: {value!r} is none of {', '.join(sorted(words))}"
    elif len(chosen) == 1:
        yield from _of_type(chosen[0], value, path)


def _fits(annotation: Any, value: object) -> bool:  # noqa: ANN401
    if annotation is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if annotation is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if annotation in (str, bool):
        return isinstance(value, annotation)
    return True


@cache
def _fields(model: Any) -> Mapping[str, tuple[list[str], Any]]:  # noqa: ANN401
    """By name on the wire: the visibility and the type of each property."""
    model({})  # the models read their fields when the first object is made
    hints = typing.get_type_hints(model, localns={"_models": MODELS})
    return {
        field._rest_name: (list(field._visibility or []), hints[attribute])
        for attribute, field in model._attr_to_rest_field.items()
    }


def _is_model(annotation: Any) -> bool:  # noqa: ANN401
    return (
        isinstance(annotation, type)
        and annotation.__module__.startswith("azure.")
        and not issubclass(annotation, Enum)
    )
