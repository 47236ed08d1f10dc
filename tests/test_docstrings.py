"""Docstrings and comments name only modules, functions, values and files that exist."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import Struct, field

import slurm_elastic

PACKAGE = Path(slurm_elastic.__file__).parent
OTHERS = {
    "EnvironmentFile", "Include", "all_nodes_resume", "boot_req_time", "credential_process",
    "proxy_read_timeout", "queued", "rpc_response_timeout",
}  # fmt: skip
"""Words of Slurm, systemd, the clouds and their SDKs that our code has no use for."""
OTHERS_PATHS = {"auth.token", "one.image.allocate", "slurm.command_timeout", "slurm.jwks",
                "slurm_elastic.checkpoint_policy", "slurm_elastic.lua", "spec.generation",
                "timings.grace"}  # fmt: skip
"""Dotted names whose first part is only by chance a module of ours."""
OTHERS_FILES = {"compute/manager.py", "setup.py"}
_QUOTED = re.compile(r"``([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)(?:\(\))?``")
_FILE = re.compile(r"\b[a-z_]+(?:/[a-z_]+)*\.py\b")


class Names(Struct):
    """The names of the package; ``of`` by module, ``modules`` by their last name."""

    known: set[str] = field(default_factory=set)
    of: dict[Path, set[str]] = field(default_factory=lambda: defaultdict(set))
    modules: dict[str, list[Path]] = field(default_factory=lambda: defaultdict(list))
    texts: list[tuple[Path, int, str]] = field(default_factory=list)


@pytest.fixture(scope="module")
def names() -> Names:
    found = Names()
    for path in sorted(PACKAGE.rglob("*.py")):
        source = path.read_text()
        tree = ast.parse(source)
        name = path.parent.name if path.name == "__init__.py" else path.stem
        found.modules[name].append(path)
        docs = {id(one): one for node in ast.walk(tree) for one in _docs(node)}
        found.texts += [(path, one.lineno, str(one.value)) for one in docs.values()]
        found.texts += _comments(path, source)
        found.of[path] = {
            word for node in ast.walk(tree) if id(node) not in docs for word in _words(node)
        }
        found.known |= found.of[path] | {name, *path.relative_to(PACKAGE).parts}
    return found


def _docs(node: ast.AST) -> Iterator[ast.Constant]:
    body = getattr(node, "body", None)
    for one in body if isinstance(body, list) else ():
        match one:
            case ast.Expr(value=ast.Constant(value=str())):
                yield one.value


def _comments(path: Path, source: str) -> list[tuple[Path, int, str]]:
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return [(path, one.start[0], one.string) for one in tokens if one.type == tokenize.COMMENT]


def _words(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
            yield name
        case ast.keyword(arg=str() as name) | ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.alias(name=name):
            yield from name.split(".")
        case ast.Constant(value=str() as text):
            yield from re.findall(r"[A-Za-z_]\w*", text)


def _is_there(name: str, names: Names) -> bool:
    *before, last = name.split(".")
    if not names.known.issuperset((*before, last)):
        return False
    modules = names.modules.get(before[-1], ()) if before else ()
    return not modules or last in names.modules or any(last in names.of[one] for one in modules)


def test_each_quoted_name_is_there(names: Names) -> None:
    wrong = [
        f"{path.relative_to(PACKAGE)}:{line}: {name}"
        for path, line, text in names.texts
        for name in _QUOTED.findall(text)
        if not name.endswith(".py")
        and name not in OTHERS | OTHERS_PATHS
        and not _is_there(name, names)
    ]
    assert wrong == []


def test_each_file_of_the_package_is_there(names: Names) -> None:
    paths = [path.relative_to(PACKAGE).as_posix() for path in names.of]
    wrong = [
        f"{path.relative_to(PACKAGE)}:{line}: {name}"
        for path, line, text in names.texts
        for name in _FILE.findall(text)
        if name not in OTHERS_FILES
        and not any(f"slurm_elastic/{one}".endswith(f"/{name}") for one in paths)
        and not f"slurm_elastic/{name}".endswith(tuple(f"/{one}" for one in paths))
    ]
    assert wrong == []
