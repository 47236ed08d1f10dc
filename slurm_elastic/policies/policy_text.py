"""Policies written as text: ``name``, ``name(key=value)``, ``name(other(key=value), third)``. Pure.

The text has Python's syntax of a call, with names, numbers, texts and calls only. Nothing is ever
evaluated.

The numbers of a policy are checked only here: each field has one of the types below, which says
what is allowed.
"""

from __future__ import annotations

import ast
import difflib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from inspect import Parameter, signature
from typing import Annotated, Any, get_args, get_type_hints

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import fields

Makers = Mapping[str, Callable[..., Any]]

LARGEST = 10**9
"""The largest number allowed in a text: as seconds, 31 years."""

Seconds = Annotated[float, Meta(ge=0, description="seconds of 0 or more")]
SecondsOver = Annotated[float, Meta(gt=0, description="seconds over 0")]
Whole = Annotated[int, Meta(ge=0, description="whole seconds of 0 or more")]
WholeOver = Annotated[int, Meta(gt=0, description="whole seconds over 0")]
Machines = Annotated[int, Meta(gt=0, description="machines over 0")]
Jobs = Annotated[int, Meta(gt=0, description="jobs over 0")]
Times = Annotated[int, Meta(gt=0, le=1000, description="a number from 1 to 1000")]
Factor = Annotated[float, Meta(gt=0, le=1000, description="a number over 0, at most 1000")]
Share = Annotated[float, Meta(gt=0, lt=1, description="a share between 0 and 1")]
DalyOrder = Annotated[int, Meta(ge=1, le=2, description="1 (Young) or 2 (Daly)")]


class Policy(Struct, frozen=True):
    """A policy that can be written as text. Raises ValueError for a number out of its range."""

    def __post_init__(self) -> None:
        for name, (form, expected) in _numbers(type(self)).items():
            value = getattr(self, name)
            if not _fits(value, form):
                raise ValueError(f"{name} is {value!r}, expected {expected}")


@cache
def _numbers(kind: type) -> Mapping[str, tuple[Any, str]]:
    """Return the number fields with their types and the types' descriptions."""
    hints = get_type_hints(kind, include_extras=True)
    hint_and_description = {name: (hint, _meta(hint)) for name, hint in hints.items()}
    return {name: (hint, meta) for name, (hint, meta) in hint_and_description.items() if meta}


def _meta(hint: Any) -> str:  # noqa: ANN401 - a type as typing has it
    """Return the description of an annotated type, or of one side of a union."""
    if isinstance(hint, Meta):
        return hint.description or ""
    metadata = getattr(hint, "__metadata__", ())
    return next((text for item in (*metadata, *get_args(hint)) if (text := _meta(item))), "")


def _fits(value: object, form: Any) -> bool:  # noqa: ANN401
    if isinstance(value, float) and not math.isfinite(value):
        return False
    try:
        msgspec.convert(value, form)
    except (msgspec.ValidationError, OverflowError):
        return False
    return True


def parse_policy(text: str, makers: Makers) -> Any:  # noqa: ANN401 - what the makers make
    """Return the policy that ``text`` names. Raises ValueError with one sentence if it names none
    or does not fit.
    """
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, RecursionError, MemoryError, ValueError):
        raise ValueError(
            f"{text!r} cannot be read, expected NAME or NAME(KEY=VALUE, ...)"
        ) from None
    return _made(tree.body, text, makers)


def text_of(policy: Struct) -> str:
    """Return a policy as text without its default values; ``parse_policy`` reads it back. A policy
    of several policies lists them in order.
    """
    tag = policy.__struct_config__.tag
    arguments: list[str] = []
    for field in fields(policy):
        value = getattr(policy, field.name)
        if isinstance(value, tuple) and value and isinstance(value[0], Struct):
            arguments += map(text_of, value)
        elif value != field.default and value is not None:
            arguments.append(f"{field.name}={value}")
    return f"{tag}({', '.join(arguments)})" if arguments else str(tag)


def split(text: str, separator: str = ",") -> list[str]:
    """Split a list of policy texts; separators inside parentheses do not count."""
    items, depth = [""], 0
    for character in text:
        depth += {"(": 1, ")": -1}.get(character, 0)
        if character == separator and depth == 0:
            items.append("")
        else:
            items[-1] += character
    return [item.strip() for item in items if item.strip()]


def _made(node: ast.expr, text: str, makers: Makers) -> Any:  # noqa: ANN401
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        arguments = [_value(item, text, makers) for item in node.args]
        if any(item.arg is None for item in node.keywords):
            raise ValueError(f"{text!r} cannot be read, expected NAME or NAME(KEY=VALUE, ...)")
        options = {str(k.arg): _value(k.value, text, makers) for k in node.keywords}
        return _call(node.func.id, arguments, options, makers)
    if isinstance(node, ast.Name):
        return _call(node.id, [], {}, makers)
    raise ValueError(f"{text!r} is no policy, expected NAME or NAME(KEY=VALUE, ...)")


def _value(node: ast.expr, text: str, makers: Makers) -> Any:  # noqa: ANN401
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        number = _value(node.operand, text, makers)
        if isinstance(number, int | float):
            return -number
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float | str):
        if isinstance(node.value, int) and node.value > LARGEST:
            raise ValueError(f"found a number over {LARGEST}")
        return node.value
    if isinstance(node, ast.Name) and node.id not in makers:
        return node.id
    return _made(node, text, makers)


def _call(name: str, arguments: list[Any], options: dict[str, Any], makers: Makers) -> Any:  # noqa: ANN401
    maker = makers.get(name)
    if maker is None:
        near = difflib.get_close_matches(name, makers, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ValueError(f"there is no {name!r}, expected one of {', '.join(makers)}{hint}")
    _check_names(name, maker, arguments, options)
    try:
        return maker(*arguments, **options)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name}: {error}") from None


def _check_names(
    name: str,
    maker: Callable[..., Any],
    arguments: Sequence[object],
    options: Iterable[str],
) -> None:
    """Raise ValueError with the existing parameters if a parameter does not exist."""
    parameters = signature(maker).parameters.values()
    parameter_names = [p.name for p in parameters if p.kind is not Parameter.VAR_POSITIONAL]
    several = len(parameter_names) < len(parameters)
    expected = f"expected {', '.join(parameter_names)}" if parameter_names else "it has none"
    for option in options:
        if option not in parameter_names:
            near = difflib.get_close_matches(option, parameter_names, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ValueError(f"{name}: there is no parameter {option!r}, {expected}{hint}")
    if len(arguments) > len(parameter_names) and not several:
        raise ValueError(f"{name}: found {len(arguments)} values, {expected}")
