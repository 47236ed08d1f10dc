"""``slurm-elastic journal``: back up what the services remember, put it back, read it through."""

from __future__ import annotations

import argparse
import fcntl
import os
from collections.abc import Sequence
from pathlib import Path

from slurm_elastic.base import writing
from slurm_elastic.base.errors import SlurmElasticError
from slurm_elastic.base.units import counted
from slurm_elastic.cli.helptext import examples
from slurm_elastic.config import Config
from slurm_elastic.config.configfile import load
from slurm_elastic.state import heads
from slurm_elastic.state.ckptstate.schema import FILE, SCHEMA
from slurm_elastic.state.ledger.schema import LEDGER
from slurm_elastic.state.store import backup
from slurm_elastic.state.store.backup import Health, Memory

LOCKS = {"daemon.lock": "slurm-elasticd", "ckptman.lock": "slurm-elastic-ckptman"}


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "journal",
        description="Back up what the services remember, put it back, or read it through. See "
        "docs/journal.md.",
        epilog=examples("slurm-elastic journal export /backup/slurm-elastic.jsonl"),
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    export = actions.add_parser(
        "export",
        help="write all of it into one file, while the services run",
        description="Write all rows and what was appended since into one file, which import takes. "
        "The services may run.",
        epilog=examples("slurm-elastic journal export /backup/slurm-elastic.jsonl"),
    )
    export.add_argument("file", metavar="FILE", type=Path, help="the file to write")
    put = actions.add_parser(
        "import",
        help="put an export back, on this head or another one",
        description="Make an export what the services remember. They must be stopped; where this "
        "head has newer facts, nothing is done.",
        epilog=examples("slurm-elastic journal import /backup/slurm-elastic.jsonl"),
    )
    put.add_argument("file", metavar="FILE", type=Path, help="an export")
    put.add_argument(
        "--older", action="store_true", help="also where this head has newer facts, which are lost"
    )
    actions.add_parser(
        "verify",
        help="read every line, and say what is damaged",
        description="Read every line of the journals; say where the first damage is and what it "
        "costs. The exit code is 1 where something is lost.",
        epilog=examples("slurm-elastic journal verify"),
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run one action of ``slurm-elastic journal``."""
    config = load(args.config)
    memories = ((config.state / "ledger.db", LEDGER), (config.state / FILE, SCHEMA))
    if args.action == "verify":
        found = _verified(config, memories)
        for one in found:
            print(*told(one), sep="\n")
        return 0 if all(one.sound for one in found) else 1
    if args.action == "export":
        return _export(config, memories, args.file)
    return _import(config, memories, args.file, older=args.older)


def _verified(config: Config, memories: Sequence[Memory]) -> list[Health]:
    with config.sharing():
        return [backup.verify(one) for one in memories]


def _import(config: Config, memories: Sequence[Memory], source: Path, *, older: bool) -> int:
    with config.sharing():
        if config.ha.directory is not None:
            _share(config.state, Path(config.ha.directory))
        held = [_held(config.state / lock, name) for lock, name in LOCKS.items()]
    try:
        lines = backup.put_back(source, memories, older=older, rights=config.sharing)
    finally:
        for descriptor in held:
            os.close(descriptor)
    print(f"{lines} lines of {source} are what the services will know; start them")
    return 0


def _share(state: Path, directory: Path) -> None:
    """What is put back is both heads'; where none of them has ever acted, this one may."""
    heads.link(state, directory)
    epochs = heads.Epochs(directory)
    if epochs.newest() is None:
        epochs.take(os.uname().nodename)


def _export(config: Config, memories: Sequence[Memory], target: Path) -> int:
    lines = backup.export(memories, target, config.sharing)
    print(f"{target}: {lines} lines")
    unsound = [one for one in _verified(config, memories) if not one.sound]
    for one in unsound:
        print(*told(one), sep="\n")
    if unsound:
        print("what is damaged is not in it, all else is: see docs/journal.md")
    return 1 if unsound else 0


def _held(path: Path, name: str) -> int:
    """The service's own lock, so that it does not start meanwhile."""
    is_new = not path.exists()
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    if is_new and (owner := writing.owner_in(path.parent)) is not None:
        os.fchown(descriptor, *owner)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise SlurmElasticError(
            f"{name} runs and would go on with what it knows: stop it first (systemctl stop {name})"
        ) from None
    return descriptor


def told(one: Health) -> list[str]:
    """The sentences about one journal."""
    if not one.segments and one.missing:
        return [f"{one.name}: there is no journal, and there was one: {one.missing} lines are lost"]
    if not one.segments:
        return [f"{one.name}: there is no journal yet"]
    parts = ((one.segments, "segment"), (one.lines, "line"), (one.facts, "fact"))
    found = [f"{one.name}: {', '.join(counted(*part) for part in parts)}"]
    for damage in one.damages:
        what = "half a line, which no write told of" if damage.torn else "is damaged"
        found.append(
            f"  {damage.path}: line {damage.line}, bytes {damage.begin} to {damage.end}: {what}"
        )
    if one.missing:
        found.append(
            f"  {one.missing} lines are lost: what they said is known where it was said again"
        )
    if one.lacking:
        found.append(
            f"  {one.lacking} rows of the newest beginning are lost: the segment before has them"
        )
    return found
