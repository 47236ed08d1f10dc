"""Run one benchmark: ``python -m benchmarks NAME [--json FILE] [its own options]``.

A benchmark is a module with ``main(arguments) -> Report``, where a part of one has other arguments;
its first docstring line says what it measures. Exit 0: all goals met, 1: not all, 2: wrong use.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import sys
from pathlib import Path

NOT_BENCHMARKS = {
    "__init__",
    "__main__",
    "beside",
    "report",
    "small_slurm",
    "traces",
    "bare_easy",
    "cheapest_cloud",
}


def names() -> dict[str, str]:
    """The benchmarks there are, and what each measures."""
    found = {}
    for path in sorted(Path(__file__).parent.glob("*.py")):
        tree = ast.parse(path.read_text())
        functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
        runs = any(node.name == "main" and len(node.args.args) == 1 for node in functions)
        if path.stem not in NOT_BENCHMARKS and runs:
            found[path.stem] = (ast.get_docstring(tree) or "").partition("\n")[0]
    return found


def main() -> int:
    known = names()
    parser = argparse.ArgumentParser(
        prog="scripts/bench",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="benchmarks:\n" + "".join(f"  {name:20} {what}\n" for name, what in known.items()),
    )
    parser.add_argument("name", choices=known, metavar="NAME", help="see below")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result there too")
    arguments, rest = parser.parse_known_args()
    report = importlib.import_module(f"benchmarks.{arguments.name}").main(rest)
    report.show()
    if arguments.json:
        report.write(arguments.json)
    return 0 if report.ok else 1


if __name__ == "__main__":
    sys.exit(main())
