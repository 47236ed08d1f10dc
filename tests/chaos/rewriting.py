"""Change a function of the product in memory, by the words of its source."""

from __future__ import annotations
import __future__

import inspect
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

_sources: dict[FunctionType, str] = {}
"""The sources of the functions that have changed: ``inspect`` knows only the files."""


class StaleDefectError(Exception):
    """The product no longer has the words that a defect replaces."""


def rewrite(target: Callable[..., Any], *changes: tuple[str, str]) -> None:
    """Replace each text, which must occur once, in the function's source.

    The function gets new code and stays the same object, so that the modules that have imported it
    run the new code, too.
    """
    function = _function_of(target)
    source = _sources.get(function) or textwrap.dedent(inspect.getsource(function))
    for old, new in changes:
        if source.count(old) != 1:
            name = f"{function.__module__}.{function.__qualname__}"
            raise StaleDefectError(f"{name} has {source.count(old)} times: {old}")
        source = source.replace(old, new)
    _sources[function] = source
    function.__code__ = _compiled(function, source)


def _function_of(target: Any) -> FunctionType:
    """The function below decorators, properties and bound methods."""
    if isinstance(target, property):
        target = target.fget
    target = inspect.unwrap(getattr(target, "__func__", target))
    if not isinstance(target, FunctionType):
        raise StaleDefectError(f"{target!r} is no function")
    return target


def _compiled(function: FunctionType, source: str) -> CodeType:
    """The code of the function, which finds the variables of the functions around it."""
    body = source[source.index("def " + function.__name__) :]  # its decorators stay as they are
    free = function.__code__.co_freevars
    if free:
        body = f"def around({', '.join(free)}):\n{textwrap.indent(body, '    ')}"
    module = compile(
        body, function.__code__.co_filename, "exec", __future__.annotations.compiler_flag
    )
    return next(code for code in _inner(module) if code.co_name == function.__name__)


def _inner(code: CodeType) -> list[CodeType]:
    """All code objects within this one, those further out first."""
    here = [const for const in code.co_consts if isinstance(const, CodeType)]
    return [*here, *(deeper for one in here for deeper in _inner(one))]


def rewrite_file(name: str, old: str, new: str) -> None:
    """Replace the text in a program or script of the product, whoever reads the file from now on."""
    real = Path.read_text

    def read_text(self: Path, *args: Any, **options: Any) -> str:
        text = real(self, *args, **options)
        if self.name != name:
            return text
        if text.count(old) != 1:
            raise StaleDefectError(f"{self} has {text.count(old)} times: {old}")
        return text.replace(old, new)

    Path.read_text = read_text  # type: ignore[method-assign]
