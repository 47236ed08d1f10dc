"""Programs without what machines do not need, such as comments: clouds limit user data."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Collection, Iterator

_HERE_DOCUMENT = re.compile(r"<<-?\s*(?P<quote>['\"]?)(?P<end>[A-Za-z_]+)(?P=quote)")


def python(source: str) -> str:
    """A Python program without comments, docstrings and annotations of functions. Python runs it as
    it runs ``source``.
    """
    lines, tree = source.splitlines(), ast.parse(source)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column].rstrip()
    # From the right, so that the columns of a line's other annotations stay.
    for row, begin, end in sorted(_annotations(tree, lines), reverse=True):
        lines[row - 1] = lines[row - 1][:begin] + lines[row - 1][end:]
    for begin, end in _docstrings(tree):
        lines[begin - 1 : end] = [""] * (end - begin + 1)
    return _narrowed("\n".join(line for line in lines if line.strip()) + "\n").rstrip("\n")


def without(source: str, classes: Collection[str]) -> str:
    """A Python program without these classes, which no other line of it may name."""
    lines = source.splitlines()
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef) and node.name in classes:
            end = node.end_lineno or node.lineno
            lines[node.lineno - 1 : end] = [""] * (end - node.lineno + 1)
    return "\n".join(lines) + "\n"


def _narrowed(source: str) -> str:
    """The program with one blank for each level of indentation. Lines within a text stay as they
    are; other lines that continue a statement need no blanks.
    """
    lines, level, is_new = source.splitlines(), 0, True
    widths: dict[int, int] = {}
    within_texts: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        row, end_row = token.start[0], token.end[0]
        if token.type in (tokenize.INDENT, tokenize.DEDENT):
            level += 1 if token.type == tokenize.INDENT else -1
        elif token.type == tokenize.NEWLINE:
            is_new = True
        elif token.type not in (tokenize.COMMENT, tokenize.NL, tokenize.ENDMARKER):
            widths.setdefault(row, level if is_new else 0)
            is_new = False
            within_texts.update(range(row + 1, end_row + 1))
    return "\n".join(
        line if row in within_texts else " " * widths.get(row, 0) + line.lstrip()
        for row, line in enumerate(lines, 1)
    )


def _annotations(tree: ast.Module, lines: list[str]) -> Iterator[tuple[int, int, int]]:
    """Yield row and columns of each annotation of an argument or a result. Annotations of several
    lines are left out.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.arg) and node.annotation is not None:
            begin, annotation = node.col_offset + len(node.arg), node.annotation
        elif isinstance(node, ast.FunctionDef) and node.returns is not None:
            annotation = node.returns
            begin = lines[annotation.lineno - 1].rindex(" ->", 0, annotation.col_offset)
        else:
            continue
        line = node.lineno if isinstance(node, ast.arg) else annotation.lineno
        if annotation.lineno == annotation.end_lineno == line:
            yield line, begin, annotation.end_col_offset or begin


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
