"""How far one request goes through the code: functions, files, SQL, readings of Slurm; its size.

One resume of a node, one suspend, one quiet round and one notice up to its requeue are served by
the services' own code over the shipped Slurm, cloud and checkpoint method in memory (the worlds of
the tests); how much of it is in these shipped fakes is told beside. Each is counted with all
optional features off, which the goals are for, and with all on that need no other program.
Comprehensions and lambdas count as part of the function that they are in. Quiet rounds are also
counted with one, three and seven clouds, which Slurm and the journal should not notice. For each
program, the modules of the package that it has loaded before it begins to work are counted.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib
import sqlite3
import subprocess
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

import slurm_elastic
from benchmarks.report import Report, Row, bounded, noted, report
from slurm_elastic.config.sections.books import BooksSettings
from slurm_elastic.config.sections.policies import Budget, SitePolicies
from slurm_elastic.config.sections.telling import Notify
from slurm_elastic.state.store.journal import Journal

PACKAGE = Path(slurm_elastic.__file__).parent
GOALS = {"resume": (110, 26), "notice": (150, None), "quiet round": (80, None)}
"""Functions and files at most."""
CLOUDS = (1, 3, 7)
LONG = 450
"""Lines of a module, at most."""
SERVICES = ("controller", "ckptman")
LOADED = 80
"""Modules that a program which runs as root, or when slurm-elasticd does not, loads at most."""
PROGRAMS = {
    "slurm-elasticd": "cli.services.daemon",
    "slurm-elastic-ckptman": "cli.services.ckptman",
    "slurm-elastic": "cli.main",
}
SMALL_PROGRAMS = {
    "slurm-elastic-watchdog": "cli.services.watchdog",
    "slurm-elastic-local": "cli.services.local_agent",
    "slurm-elastic-hub": "cli.services.hub",
    "slurm-elastic-copier": "cli.services.copier",
    "the work of slurm-elastic-local": "machine.local.agent",
    "the work of slurm-elastic-hub": "machine.hub.service",
    "the work of slurm-elastic-copier": "machine.jobfiles.copier",
    "an end of a copy": "machine.jobfiles.run",
    "the root part of checkpoints": "machine.ckptroot.main",
}
"""Programs that should load at most ``LOADED`` modules. The work of a service is what it does with
the settings that its program has read. The four services' programs load more: they read the whole
configuration, which alone takes twice as many.
"""
FAKES = ("providers/fake/", "checkpointers/fake", "slurm/client/fake", "testing/")
"""Files that stand for Slurm, a cloud and a checkpoint method."""
_SQL = {"execute", "executemany", "executescript"}


def main(arguments: Sequence[str]) -> Report:
    parser = argparse.ArgumentParser(prog="scripts/bench shape")
    parser.add_argument("--list", metavar="CASE", choices=sorted(CASES), help="its calls, in order")
    options = parser.parse_args(arguments)
    if options.list:
        for line in CASES[options.list]().lines:
            print(line)
    rows = [row for case, serve in CASES.items() for row in way_rows(case, serve())]
    rows += [row for case, serve in CASES.items() for row in features_rows(case, serve(on=True))]
    return report("shape", [*rows, *cloud_rows(), *line_rows(), *module_rows(modules()),
                             *loaded_rows()])  # fmt: skip


# the ways


class Way:
    """Counts what one thread after the other calls in the package."""

    def __init__(self) -> None:
        self.files: set[str] = set()
        self.functions: set[CodeType] = set()
        self.calls = self.statements = self.readings = self.appended = self.syncs = 0
        self.lines: list[str] = []

    @contextlib.contextmanager
    def seen(self) -> Iterator[None]:
        """Count while this lasts."""
        threading.setprofile(self._event)
        sys.setprofile(self._event)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    @property
    def fakes(self) -> int:
        """Functions that a site has others of: those of its cloud, Slurm and checkpoint method."""
        names = (code.co_filename.removeprefix(f"{PACKAGE}/") for code in self.functions)
        return sum(name.startswith(FAKES) for name in names)

    def _event(self, frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            self._call(frame)
            return
        name = getattr(argument, "__name__", "")
        if event == "c_call" and name == "fsync" and frame.f_code is Journal.append.__code__:
            self.syncs += 1
        elif event == "c_call" and name in _SQL:
            owner = getattr(argument, "__self__", None)
            if isinstance(owner, sqlite3.Connection | sqlite3.Cursor):
                self.statements += 1
                self.lines.append(f"  SQL from {_place(frame.f_code)}")

    def _call(self, frame: FrameType) -> None:
        code = frame.f_code
        if not ours(code) or code.co_name.startswith("<"):
            return
        if code is Journal.append.__code__:
            self.appended += len(frame.f_locals["batches"])
        self.calls += 1
        self.files.add(code.co_filename)
        self.functions.add(code)
        self.lines.append(_place(code))


def ours(code: CodeType) -> bool:
    """Whether it is the package's."""
    return code.co_filename.startswith(f"{PACKAGE}/")


def _place(code: CodeType) -> str:
    return f"{code.co_filename.removeprefix(f'{PACKAGE}/')}:{code.co_qualname}"


def resume(*, on: bool = False) -> Way:
    """From the request of one node in the spool to its machine and address."""
    with world("tests.controller.world", "World", **features(on=on)) as site:
        site.advance(30)
        site.slurm.submit(1, ("pub1",))
        site.slurm.step()
        way, before = Way(), site.slurm.calls.total()
        with way.seen():
            site.tick()
        way.readings = site.slurm.calls.total() - before
        if not site.machines_of("pub1"):
            raise SystemExit("the resume was not served")
        return way


def suspend(*, on: bool = False) -> Way:
    """From the request of one node in the spool to the end of its machine."""
    with world("tests.controller.world", "World", **features(on=on)) as site:
        run(site)
        site.slurm.finish(1)
        while not any(kind == "suspend" for kind, *_ in site.requests):
            site.tick()  # a round that is due is not the suspend's
            site.now += 1.0
            site.live()
        way, before = Way(), site.slurm.calls.total()
        with way.seen():
            site.tick()
        way.readings = site.slurm.calls.total() - before
        if site.machines_of("pub1"):
            raise SystemExit("the suspend was not served")
        return way


def quiet_round(*, on: bool = False) -> Way:
    """One round of all clouds in which nothing is to do; one machine runs a job. The usage record,
    a task of its own once a minute, is measured apart.
    """
    return _quiet(usage=False, on=on)


def usage(*, on: bool = False) -> Way:
    """One look of the usage record and the counters, in that minute."""
    return _quiet(usage=True, on=on)


def _quiet(*, usage: bool, on: bool) -> Way:
    with world("tests.controller.world", "World", **features(on=on)) as site:
        run(site)
        site.advance(120)
        before = site.kinds("pub1")
        way, other = Way(), Way()
        site.now += site.config.timings.reconcile_interval
        site.live()
        calls = site.slurm.calls.total()
        with (way if usage else other).seen():
            site.daemon.parts["usage"].task.tick()
        way.readings, calls = site.slurm.calls.total() - calls, site.slurm.calls.total()
        with (other if usage else way).seen():
            site.tick()
        if not usage:
            way.readings = site.slurm.calls.total() - calls
        if site.kinds("pub1") != before or not site.machines_of("pub1"):
            raise SystemExit("the round was not quiet")
        return way


def clouds(count: int) -> Way:
    """A quiet round of so many clouds without machines, and how often it reads Slurm. The look at
    the clouds' order, a task of its own, is measured apart.
    """
    return _round_of(count, is_order=False)


def cloud_order(count: int) -> Way:
    """One look at the order of so many clouds while no job waits."""
    return _round_of(count, is_order=True)


def _round_of(count: int, *, is_order: bool) -> Way:
    module = importlib.import_module("tests.controller.world")
    made = module.World(**module.many_clouds(count))
    try:
        made.advance(120)
        way, other = Way(), Way()
        made.now += made.config.timings.reconcile_interval
        made.live()
        before = made.slurm.calls.total()
        # A site with one cloud has no such part.
        if (part := made.daemon.parts.get("cloud order")) is not None:
            with (way if is_order else other).seen():
                part.task.tick()
        between = made.slurm.calls.total()
        with (other if is_order else way).seen():
            made.tick()
        way.readings = between - before if is_order else made.slurm.calls.total() - between
        return way
    finally:
        made.close()


def notice(*, on: bool = False) -> Way:
    """From a cloud's notice to the requeue of the job on that machine, saved on the way."""
    saves = {"policy": "first_of(on_notice, daly)", "probe_after": 60.0} if on else {}
    with world("tests.ckptman.world", "CkptWorld", site=features(on=on), **saves) as site:
        site.runs(1)
        site.daemon = None  # the other service is not measured
        site.interrupt("pub1")
        way, before = Way(), site.slurm.calls.total()
        for _ in range(60):
            site.now += 1.0
            with way.seen():
                site.tick()
            way.readings = site.slurm.calls.total() - before
            if "RUNNING" not in site.job(1).states:
                return way
        raise SystemExit("the job was not requeued")


def features(*, on: bool) -> dict[str, Any]:
    """The configuration of the optional features: tags of owners, mails, budgets of accounts and
    of the cluster, and pools that keep machines stopped.
    """
    if not on:
        return {"accounting": BooksSettings(tags=())}
    plain = importlib.import_module("tests.controller.world").make_config(Path("/nowhere"))
    budget = Budget(per_day=100.0)
    return {
        "accounting": BooksSettings(),
        "notify": Notify(mail=("ops@example.org",)),
        "policies": SitePolicies(budget=budget, account_budgets={"physics": budget}),
        "pools": tuple(replace(pool, max_stopped=1) for pool in plain.pools),
    }


def run(site: Any) -> None:  # noqa: ANN401 - a world of the tests
    """A job on ``pub1`` that runs."""
    site.slurm.submit(1, ("pub1",))
    site.advance(60)
    if "RUNNING" not in site.slurm.queue()[1].states:
        raise SystemExit("the job does not run")


@contextlib.contextmanager
def world(module: str, name: str, **config: object) -> Iterator[Any]:
    """A site of the tests."""
    made = getattr(importlib.import_module(module), name)(**config)
    try:
        yield made
    finally:
        made.close()


CASES: Mapping[str, Callable[..., Way]] = {
    "resume": resume,
    "suspend": suspend,
    "quiet round": quiet_round,
    "usage record": usage,
    "notice": notice,
}


def way_rows(case: str, way: Way) -> list[Row]:
    label = "notice to requeue" if case == "notice" else case
    functions, files = GOALS.get(case, (None, None))
    return [
        _row(f"{label}: functions", len(way.functions), functions, "functions"),
        _row(f"{label}: files", len(way.files), files, "files"),
        noted(f"{label}: functions of these in fakes", way.fakes, "functions"),
        noted(f"{label}: calls", way.calls, "calls"),
        *effect_rows(label, way),
    ]


def features_rows(case: str, way: Way) -> list[Row]:
    """The same with the optional features on."""
    label = f"{'notice to requeue' if case == 'notice' else case}, features on"
    return [
        noted(f"{label}: functions", len(way.functions), "functions"),
        noted(f"{label}: files", len(way.files), "files"),
        *effect_rows(label, way),
    ]


def effect_rows(label: str, way: Way) -> list[Row]:
    """The questions to Slurm, and what goes to the memory."""
    return [
        noted(f"{label}: commands of Slurm", way.readings, "commands"),
        noted(f"{label}: SQL statements", way.statements, "statements"),
        noted(f"{label}: journal lines", way.appended, "lines"),
        noted(f"{label}: journal syncs", way.syncs, "syncs"),
    ]


def cloud_rows() -> list[Row]:
    ways = {count: clouds(count) for count in CLOUDS}
    least = ways[CLOUDS[0]].readings
    rows = []
    for count, way in ways.items():
        name = f"quiet round of {count} cloud{'s' if count > 1 else ''}"
        rows.append(bounded(f"{name}: readings of Slurm", way.readings, least, "readings"))
        rows.append(noted(f"{name}: SQL statements", way.statements, "statements"))
        rows.append(noted(f"{name}: journal lines", way.appended, "lines"))
        rows.append(noted(f"{name}: journal syncs", way.syncs, "syncs"))
    return rows


def _row(case: str, ours: float, most: float | None, unit: str) -> Row:
    return noted(case, ours, unit) if most is None else bounded(case, ours, most, unit)


# the lines


def line_rows() -> list[Row]:
    folders: Counter[str] = Counter()
    long: list[Path] = []
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE).parts
        lines = len(path.read_text().splitlines())
        folders[parts[0] if len(parts) > 1 else "modules beside"] += lines
        long += [path] * (lines > LONG)
    return [
        noted("lines", folders.total(), "lines"),
        *(noted(f"lines: {name}", lines, "lines") for name, lines in folders.most_common()),
        bounded(f"modules over {LONG} lines", len(long), 0, "modules"),
    ]


# the modules


class Module(Struct, frozen=True):
    """One module: its imports from the package, the methods that it calls, those it defines."""

    imports: frozenset[str]
    called: frozenset[str]
    defined: frozenset[str]


def modules(package: Path = PACKAGE) -> dict[str, Module]:
    """The package's modules by name."""
    trees = {_name(path, package): path for path in sorted(package.rglob("*.py"))}
    return {name: _module(ast.parse(path.read_text()), trees) for name, path in trees.items()}


def _name(path: Path, package: Path) -> str:
    parts = path.relative_to(package.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _module(tree: ast.Module, known: Mapping[str, Path]) -> Module:
    imports: set[str] = set()
    called: set[str] = set()
    defined: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=str(base), names=names, level=0):
                # A name of a package is a module of it or something in it.
                for one in names:
                    imports.add(inner if (inner := f"{base}.{one.name}") in known else base)
            case ast.Import(names=names):
                imports.update(one.name for one in names)
            case ast.Call(func=ast.Attribute(attr=str(method))):
                called.add(method)
            case ast.FunctionDef(name=name):
                defined.add(name)
    return Module(frozenset(imports & known.keys()), frozenset(called), frozenset(defined))


def module_rows(found: Mapping[str, Module]) -> list[Row]:
    importers: defaultdict[str, set[str]] = defaultdict(set)
    for name, module in found.items():
        for imported in module.imports - {name}:
            importers[imported].add(name)
    alone = sum(len(by) == 1 for by in importers.values())
    return [
        noted("modules", len(found), "modules"),
        noted("modules with one importer", alone, "modules"),
        bounded("modules that update nodes", len(calling(found, "update_nodes")), len(SERVICES),
                "modules"),
        bounded("modules that change requeue", len(calling(found, "set_requeue")), 1, "modules"),
    ]  # fmt: skip


def calling(found: Mapping[str, Module], method: str) -> list[str]:
    """The modules that call a method of this name, but for Slurm's clients, who have it."""
    return [
        name for name, module in found.items()
        if method in module.called and method not in module.defined
    ]  # fmt: skip


# the programs


def loaded_rows() -> list[Row]:
    return [
        *(noted(f"loaded by {name}", len(loaded(module)), "modules")
          for name, module in PROGRAMS.items()),
        *(bounded(f"loaded by {name}", len(loaded(module)), LOADED, "modules")
          for name, module in SMALL_PROGRAMS.items()),
    ]  # fmt: skip


def loaded(module: str) -> frozenset[str]:
    """The modules of the package that a fresh Python has after the import of this one."""
    code = f"import sys, slurm_elastic.{module}; print(*sys.modules)"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return frozenset(n for n in done.stdout.split() if n.partition(".")[0] == PACKAGE.name)
