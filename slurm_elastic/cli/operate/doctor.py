"""``slurm-elastic doctor``: checks everything that launches need, and reports what is wrong."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from slurm_elastic.base.account import acting_as, trusted
from slurm_elastic.base.errors import ProviderError
from slurm_elastic.base.units import counted
from slurm_elastic.cli.helptext import examples
from slurm_elastic.cli.machine_readable import write_json
from slurm_elastic.cli.operate.console import plain
from slurm_elastic.cli.reports.shortened import words
from slurm_elastic.cli.services.service_environment import as_the_services
from slurm_elastic.config import Config, blocked_clouds
from slurm_elastic.config.catalogue import Catalogue, path_of
from slurm_elastic.config.catalogue import kept as kept_catalogue
from slurm_elastic.config.configfile import read
from slurm_elastic.model.causes.stops import CloudBlocked
from slurm_elastic.model.finding import Finding, FindingLevel
from slurm_elastic.model.protocols import Slurm
from slurm_elastic.providers.catalogues import completed_by, gathered
from slurm_elastic.slurm.client.commands.doctor_commands import ProbingCli
from slurm_elastic.slurm.conf import plan
from slurm_elastic.watch.causes import once_per_cause
from slurm_elastic.watch.doctor import (
    auth,
    bursting,
    clouds,
    copies,
    head,
    images,
    kept,
    mounts,
    network,
    outdated,
    threats,
    two_heads,
)

Catalogues = Mapping[str, Catalogue | ProviderError]
"""The catalogue of types and prices by cloud, or the error if it could not be read."""
NO_CATALOGUES: Catalogues = {}

_STYLES = {FindingLevel.OK: "green", FindingLevel.NOTE: "yellow", FindingLevel.WRONG: "bold red"}


class FindingsPart(Struct, frozen=True, kw_only=True):
    """The findings on one cloud, or on the head node."""

    name: str
    findings: tuple[Finding, ...]


class Diagnosis(Struct, frozen=True, kw_only=True):
    """The document of ``doctor --json``.

    ``wrong``: number of errors. ``stuck``: number of jobs that cannot start without help, without
    the jobs that a person holds on purpose. ``at``: Unix time.
    """

    at: float
    wrong: int
    parts: tuple[FindingsPart, ...]
    version: int = 1
    stuck: int = 0


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "doctor",
        description="Check each cloud (credentials, machines, offers and their capacity, image, "
        "network, clock), the state directory, the waiting requests, the daemon, Slurm, the "
        "addresses of its nodes, the tunnel to machines, the NFS servers of join.mounts, and "
        "slurm.conf. Before conf install, doctor checks only the existing parts. It changes "
        "nothing. The exit code is 0 if all is well, 1 if something is wrong.",
        epilog=examples("slurm-elastic doctor --quick"),
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="leave out the check of slurm.conf, which takes longest",
    )
    parser.add_argument(
        "--clouds",
        action="store_true",
        help="check only the clouds: before conf install, after init has made the configuration",
    )
    parser.add_argument(
        "--account",
        metavar="NAME",
        default="",
        help="the account of the jobs that doctor asks sbatch about, for a site that demands one",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the diagnosis. Exit 1 if something is wrong."""
    return examine(
        Path(args.config), quick=args.quick, clouds=args.clouds, account=args.account,
        json=args.json,
    )  # fmt: skip


def examine(
    file: Path, *, quick: bool = False, clouds: bool = False, account: str = "", json: bool = False
) -> int:
    """Print the diagnosis of the site of a configuration. Return 1 if something is wrong."""
    typed = read(file)
    with as_the_services(file, typed) as environment:
        catalogues = _catalogues(typed)
        config = completed_by(typed, catalogues, time.time())
        if clouds:
            diagnosis = _diagnosis(look_at_clouds(config, catalogues), time.time())
        else:
            is_ours = plan.is_installed(config) or head.lacks_include(config, file)
            look = diagnose if is_ours else before_install
            slurm = ProbingCli(config.slurm)
            diagnosis = look(
                config, slurm, time.time(), environment, quick=quick, catalogues=catalogues,
                file=file, account=account,
            )  # fmt: skip
    if json:
        write_json(diagnosis)
    else:
        render(diagnosis, plain())
    return 1 if diagnosis.wrong else 0


def _catalogues(typed: Config) -> Catalogues:
    """Read each catalogue once, so that offers and findings refer to the same one.

    The error of a cloud that does not answer becomes a finding.
    """
    if _is_closed(typed):
        files = {c.name: kept_catalogue(path_of(typed, c)) for c in typed.clouds if c.catalogued}
        return {name: catalogue for name, catalogue in files.items() if catalogue is not None}
    with acting_as(typed.slurm.user):
        return gathered(typed, time.time())


def diagnose(
    config: Config,
    slurm: Slurm,
    now: float,
    environment: Finding | None = None,
    *,
    quick: bool = False,
    catalogues: Catalogues = NO_CATALOGUES,
    file: Path | None = None,
    account: str = "",
) -> Diagnosis:
    """Check everything; the clouds at the same time, because each may take its whole time-out."""
    sections = look_at_clouds(config, catalogues)
    kept_findings, stuck = kept.examine(config, slurm, now)
    findings = [
        *([environment] if environment else []),
        *head.state_directory(config),
        *head.include_line(config, file),
        *head.slurm(
            config, slurm
        ),  # before the ledger's last error of Slurm: first one is reported
        *kept_findings,
        *head.budgets(config),
        *bursting.budgets_passed(config),
        *bursting.left_on_own_nodes(config, slurm),
        *head.allowed_groups(config),
        *head.join_head(config),
        *auth.examine(config, now),
        *head.memory(config, now),
        *(outdated.examine(config, file) if file else ()),
        *(outdated.refused(config, file) if file else ()),
        *_both_heads(config, now),
        *threats.examine(config, slurm, now),
        *images.lost_jobs(config, slurm, now),
        *network.examine(config, slurm, now),
        *mounts.examine(config),
        *copies.examine(config, now),
        *(() if quick else head.slurm_conf(config)),
    ]
    sections.append(FindingsPart(name="head node", findings=tuple(findings)))
    if isinstance(slurm, bursting.Probing) and _answers(findings):
        probes = (
            *bursting.probes(config, slurm, account),
            *(() if quick else bursting.plain_job(config, slurm, account)),
        )
        sections.append(FindingsPart(name="a job of one node", findings=probes))
    return replace(_diagnosis(sections, now), stuck=stuck)


def _both_heads(config: Config, now: float) -> Sequence[Finding]:
    """Check the directory that two heads share; nothing for users, who may not read it.

    Read it as SlurmUser, its owner: NFS may map root to nobody (root_squash).
    """
    if _is_closed(config):
        return ()
    with acting_as(config.slurm.user):
        return tuple(two_heads.examine(config, now))


def before_install(
    config: Config,
    slurm: Slurm,
    now: float,
    environment: Finding | None = None,
    *,
    quick: bool = False,
    catalogues: Catalogues = NO_CATALOGUES,
    file: Path | None = None,
    account: str = "",
) -> Diagnosis:
    """The checks before ``conf install``, when neither our services nor our nodes exist yet."""
    del account  # sbatch is not asked
    findings = [
        *([environment] if environment else []),
        *head.before_install(config, slurm),
        *(outdated.refused(config, file) if file else ()),
        *head.budgets(config),
        *bursting.budgets_passed(config),
        *head.allowed_groups(config),
        *head.join_head(config),
        *auth.examine(config, now),
        *(() if quick else head.slurm_conf(config)),
    ]
    head_node = FindingsPart(name="head node", findings=tuple(findings))
    sections = [*look_at_clouds(config, catalogues), head_node]
    return _diagnosis(sections, now)


def _diagnosis(sections: Sequence[FindingsPart], now: float) -> Diagnosis:
    # In the order of the sections: the first finding of a cause names it, later ones are left out.
    reported: set[str] = set()
    reported_sections = tuple(
        FindingsPart(name=section.name, findings=tuple(once_per_cause(section.findings, reported)))
        for section in sections
    )
    wrong = sum(
        f.level is FindingLevel.WRONG for section in reported_sections for f in section.findings
    )
    return Diagnosis(at=now, wrong=wrong, parts=reported_sections)


def look_at_clouds(config: Config, catalogues: Catalogues = NO_CATALOGUES) -> list[FindingsPart]:
    """Check all clouds at the same time, with the rights of SlurmUser, as the services do.

    No cloud is asked for a user who may not use the services' credentials.
    """
    blocked = blocked_clouds(config)
    if _is_closed(config):
        closed = clouds.not_looked_at(config)
        return [
            FindingsPart(name=f"cloud {c.name}", findings=(*_blocked(blocked.get(c.name)), closed))
            for c in config.clouds
        ]
    pools = plan.pools_of(config)
    with (
        acting_as(config.slurm.user),
        ThreadPoolExecutor(max_workers=len(config.clouds)) as workers,
    ):
        looks = [
            workers.submit(
                clouds.examine,
                config,
                c,
                [p for p in pools if p.cloud == c.name],
                catalogues.get(c.name),
            )
            for c in config.clouds
        ]
    return [
        FindingsPart(
            name=f"cloud {c.name}", findings=(*_blocked(blocked.get(c.name)), *look.result())
        )
        for c, look in zip(config.clouds, looks, strict=True)
    ]


def _is_closed(config: Config) -> bool:
    """Whether clouds would be asked with this user's credentials instead of the services'."""
    return plan.is_installed(config) and os.geteuid() not in trusted(config.slurm.user)


def _answers(findings: Sequence[Finding]) -> bool:
    """Whether slurmctld answers. If it does not, every probe would fail for the same reason."""
    return any(f.subject == "slurmctld" and f.level is FindingLevel.OK for f in findings)


def _blocked(reason: CloudBlocked | None) -> Sequence[Finding]:
    return [Finding.note("not in use", str(reason))] if reason else []


def render(diagnosis: Diagnosis, console: Console) -> None:
    """Print for people: one line for each finding, and below it what to do."""
    for section in diagnosis.parts:
        console.print(Text(section.name.capitalize(), style="bold"))
        for finding in section.findings:
            style = _STYLES[finding.level]
            row = Table.grid(padding=(0, 1, 0, 0))
            row.add_column(width=5)
            row.add_column(overflow="fold")
            row.add_row(
                Text(finding.level.value, style=style),
                words(f"{finding.subject}: {finding.observed}"),
            )
            for word, text in (("expected", finding.expected), ("do", finding.advice)):
                if text:
                    row.add_row("", words(f"{word}: {text}", "dim" if word == "expected" else ""))
            console.print(Padding(row, (0, 0, 0, 2), expand=False))
        console.print()
    console.print(_conclusion(diagnosis))


def _conclusion(diagnosis: Diagnosis) -> Text:
    if diagnosis.wrong:
        return Text(f"{counted(diagnosis.wrong, 'thing')} to put right.", style="bold red")
    notes = sum(
        f.level is FindingLevel.NOTE for section in diagnosis.parts for f in section.findings
    )
    if diagnosis.stuck:
        jobs = f"{counted(diagnosis.stuck, 'job')} cannot start without help"
        return Text(f"{jobs}; {counted(notes, 'note')} to read.", style="yellow")
    if notes:
        return Text(f"Nothing is broken; {counted(notes, 'note')} to read.", style="yellow")
    return Text("All is well.", style="green")
