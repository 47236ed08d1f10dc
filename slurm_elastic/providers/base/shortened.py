"""Programs without comments and docstrings, which machines do not need. Clouds limit user data."""

from __future__ import annotations

import ast
import io
import re
import tokenize

_HERE_DOCUMENT = re.compile(r"<<-?\s*(?P<quote>['\"]?)(?P<end>[A-Za-z_]+)(?P=quote)")


def python(source: str) -> str:
    """A Python program without comments and docstrings. Python runs it as it runs ``source``."""
    lines = source.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column].rstrip()
    for begin, end in _docstrings(ast.parse(source)):
        lines[begin - 1 : end] = [""] * (end - begin + 1)
    return "\n".join(line for line in lines if line.strip())


def _docstrings(tree: ast.Module) -> list[tuple[int, int]]:
    """The first and last line of each docstring, also of attributes."""
    spans = []
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if not isinstance(body, list) or len(body) == 1:  # a body needs one statement
            continue
        spans += [(s.lineno, s.end_lineno or s.lineno) for s in body if _is_text(s)]
    return spans


def _is_text(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def shell(source: str) -> str:
    """A program of sh without comments. Lines of here-documents stay, because they may be files."""
    kept, end = [], ""
    for line in source.splitlines():
        if end:
            end = "" if line == end else end
        elif line.lstrip().startswith("# ") or not line.strip():
            continue
        elif match := _HERE_DOCUMENT.search(line):
            end = match["end"]
        kept.append(line)
    return "\n".join(kept)
