"""Policies written as text: ``name``, ``name(key=value)``, ``name(other(key=value), third)``. Pure.

The text is Python's syntax of a call, of which only names, numbers, texts and calls are understood;
nothing is ever evaluated.

A policy's numbers are checked here alone: a field of one of the types below says what it must be.
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
"""No number in a text is larger: 31 years, where it is seconds."""

Seconds = Annotated[float, Meta(ge=0, description="seconds of 0 or more")]
SecondsOver = Annotated[float, Meta(gt=0, description="seconds over 0")]
Whole = Annotated[int, Meta(ge=0, description="whole seconds of 0 or more")]
WholeOver = Annotated[int, Meta(gt=0, description="whole seconds over 0")]
Machines = Annotated[int, Meta(gt=0, description="machines over 0")]
Jobs = Annotated[int, Meta(gt=0, description="jobs over 0")]
Times = Annotated[int, Meta(gt=0, le=1000, description="a number from 1 to 1000")]
Share = Annotated[float, Meta(gt=0, lt=1, description="a share between 0 and 1")]
DalyOrder = Annotated[int, Meta(ge=1, le=2, description="1 (Young) or 2 (Daly)")]


class Policy(Struct, frozen=True):
    """A policy that can be written as text. ValueError for a number that makes no sense in it."""

    def __post_init__(self) -> None:
        for name, (form, expected) in _numbers(type(self)).items():
            value = getattr(self, name)
            if not _fits(value, form):
                raise ValueError(f"{name} is {value!r}, expected {expected}")


@cache
def _numbers(kind: type) -> Mapping[str, tuple[Any, str]]:
    """The fields that are numbers, with their types and what these say of themselves."""
    hints = get_type_hints(kind, include_extras=True)
    found = {name: (hint, _meta(hint)) for name, hint in hints.items()}
    return {name: (hint, meta) for name, (hint, meta) in found.items() if meta}


def _meta(hint: Any) -> str:  # noqa: ANN401 - a type as typing has it
    """The bounds and words of an annotated type, or of one side of a union."""
    if isinstance(hint, Meta):
        return hint.description or ""
    own = getattr(hint, "__metadata__", ())
    return next((text for part in (*own, *get_args(hint)) if (text := _meta(part))), "")


def _fits(value: object, form: Any) -> bool:  # noqa: ANN401
    if isinstance(value, float) and not math.isfinite(value):
        return False
    try:
        msgspec.convert(value, form)
    except (msgspec.ValidationError, OverflowError):
        return False
    return True


def parse_policy(text: str, makers: Makers) -> Any:  # noqa: ANN401 - what the makers make
    """The policy that ``text`` names. ValueError with one sentence where it names nothing or does
    not fit.
    """
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, RecursionError, MemoryError, ValueError):
        raise ValueError(
            f"{text!r} cannot be read, expected NAME or NAME(KEY=VALUE, ...)"
        ) from None
    return _made(tree.body, text, makers)


def text_of(policy: Struct) -> str:
    """A policy as text, without what is as usual: ``parse_policy`` reads it again. A policy of
    several has them in their order.
    """
    tag = policy.__struct_config__.tag
    parts: list[str] = []
    for field in fields(policy):
        value = getattr(policy, field.name)
        if isinstance(value, tuple) and value and isinstance(value[0], Struct):
            parts += map(text_of, value)
        elif value != field.default and value is not None:
            parts.append(f"{field.name}={value}")
    return f"{tag}({', '.join(parts)})" if parts else str(tag)


def split(text: str, separator: str = ",") -> list[str]:
    """The parts of a list of such texts; separators inside parentheses do not count."""
    parts, depth = [""], 0
    for character in text:
        depth += {"(": 1, ")": -1}.get(character, 0)
        if character == separator and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts if part.strip()]


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
    """ValueError that names the parameters there are, where one is none of them."""
    parameters = signature(maker).parameters.values()
    known = [p.name for p in parameters if p.kind is not Parameter.VAR_POSITIONAL]
    several = len(known) < len(parameters)
    expected = f"expected {', '.join(known)}" if known else "it has none"
    for option in options:
        if option not in known:
            near = difflib.get_close_matches(option, known, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ValueError(f"{name}: there is no parameter {option!r}, {expected}{hint}")
    if len(arguments) > len(known) and not several:
        raise ValueError(f"{name}: found {len(arguments)} values, {expected}")
