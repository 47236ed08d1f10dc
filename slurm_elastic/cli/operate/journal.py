"""``slurm-elastic journal``: back up, restore and verify the services' records."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from slurm_elastic.base.errors import SlurmElasticError
from slurm_elastic.base.pages import page
from slurm_elastic.base.processes import service_remedies
from slurm_elastic.base.units import counted
from slurm_elastic.cli.helptext import examples
from slurm_elastic.config import Config
from slurm_elastic.config.configfile import load
from slurm_elastic.state import heads, locks
from slurm_elastic.state.ckptstate.schema import FILE, SCHEMA
from slurm_elastic.state.ledger.schema import LEDGER
from slurm_elastic.state.store import backup
from slurm_elastic.state.store.backup import JournalHealth, Memory

LOCKS = {"daemon.lock": "slurm-elasticd", "ckptman.lock": "slurm-elastic-ckptman"}


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "journal",
        description=f"Back up, restore or verify the services' records. See {page('journal')}.",
        epilog=examples("slurm-elastic journal export /backup/slurm-elastic.jsonl"),
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    export = actions.add_parser(
        "export",
        help="write all records into one file, while the services run",
        description="Write all records into one file that import can read. The services may run.",
        epilog=examples("slurm-elastic journal export /backup/slurm-elastic.jsonl"),
    )
    export.add_argument("file", metavar="FILE", type=Path, help="the file to write")
    put = actions.add_parser(
        "import",
        help="restore an export, on this head or another one",
        description="Restore an export as the services' records. The services must be stopped. If "
        "this head has newer records, nothing is done.",
        epilog=examples("slurm-elastic journal import /backup/slurm-elastic.jsonl"),
    )
    put.add_argument("file", metavar="FILE", type=Path, help="an export")
    put.add_argument(
        "--older", action="store_true", help="restore also if that loses newer records of this head"
    )
    actions.add_parser(
        "verify",
        help="read every line and report damage",
        description="Read every line of the journals and report each damage and the lost records. "
        "The exit code is 1 if something is lost.",
        epilog=examples("slurm-elastic journal verify"),
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run one action of ``slurm-elastic journal``. Exit 1 if a journal is damaged."""
    config = load(args.config)
    memories = ((config.state / "ledger.db", LEDGER), (config.state / FILE, SCHEMA))
    if args.action == "verify":
        healths = _verified(config, memories)
        for health in healths:
            print(*health_lines(health), sep="\n")
        return 0 if all(health.sound for health in healths) else 1
    if args.action == "export":
        return _export(config, memories, args.file)
    return _import(config, memories, args.file, older=args.older)


def _verified(config: Config, memories: Sequence[Memory]) -> list[JournalHealth]:
    with config.sharing():
        return [backup.verify(memory) for memory in memories]


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
    print(f"restored {lines} lines of {source}; start the services now")
    return 0


def _share(state: Path, directory: Path) -> None:
    """Restore into the directory that two heads share.

    If no head has ever acted, this head takes the first epoch, so that it may act.
    """
    heads.link(state, directory)
    epochs = heads.Epochs(directory)
    if epochs.newest() is None:
        epochs.take(os.uname().nodename)


def _export(config: Config, memories: Sequence[Memory], target: Path) -> int:
    lines = backup.export(memories, target, config.sharing)
    print(f"{target}: {lines} lines")
    unsound = [health for health in _verified(config, memories) if not health.sound]
    for health in unsound:
        print(*health_lines(health), sep="\n")
    if unsound:
        print(f"the export lacks the damaged lines and has all others: see {page('journal')}")
    return 1 if unsound else 0


def _held(path: Path, name: str) -> int:
    """Take the service's own lock, so that it cannot start during the restore.

    Returns the open descriptor. SlurmElasticError if the service runs.
    """
    try:
        return locks.take(path)
    except locks.HeldError:
        raise SlurmElasticError(
            f"{name} runs and would overwrite the import: stop it first "
            f"({service_remedies.stop(name)})"
        ) from None


def health_lines(health: JournalHealth) -> list[str]:
    """The lines that ``verify`` prints about one journal."""
    if not health.segments and health.missing:
        return [f"{health.name}: the journal has disappeared: {health.missing} lines are lost"]
    if not health.segments:
        return [f"{health.name}: there is no journal yet"]  # its service has never run
    totals = ((health.segments, "segment"), (health.lines, "line"), (health.facts, "fact"))
    lines = [f"{health.name}: {', '.join(counted(*number_and_noun) for number_and_noun in totals)}"]
    for damage in health.damages:
        kind = "half a line of an unfinished write" if damage.torn else "is damaged"
        lines.append(
            f"  {damage.path}: line {damage.line}, bytes {damage.begin} to {damage.end}: {kind}"
        )
    if health.missing:
        lines.append(f"  {health.missing} lines are lost, except records that later lines repeat")
    if health.lacking:
        lines.append(
            f"  {health.lacking} rows at the start of the newest segment are lost here: the segment"
            " before has them"
        )
    return lines
