"""Policies written as text: ``name``, ``name(key=value)``, ``name(other(key=value), third)``. Pure.

The text is Python's syntax of a call, of which only names, numbers, texts and calls are understood;
nothing is ever evaluated.
"""

from __future__ import annotations

import ast
import difflib
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import fields

Makers = Mapping[str, Callable[..., Any]]


def spell(text: str, makers: Makers) -> Any:  # noqa: ANN401 - what the makers make
    """What ``text`` names. ValueError with one sentence where it names nothing or does not fit."""
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, RecursionError, MemoryError, ValueError):
        raise ValueError(
            f"{text!r} cannot be read, expected NAME or NAME(KEY=VALUE, ...)"
        ) from None
    return _made(tree.body, text, makers)


def text_of(policy: Struct) -> str:
    """A policy as text, without what is as usual: ``spell`` reads it again."""
    tag = policy.__struct_config__.tag
    parts = [
        f"{field.name}={value}"
        for field in fields(policy)
        if (value := getattr(policy, field.name)) != field.default and value is not None
    ]
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
        options = {item.arg: _value(item.value, text, makers) for item in node.keywords if item.arg}
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
    try:
        return maker(*arguments, **options)
    except TypeError as error:
        raise ValueError(f"{name}: {error}") from None
