"""Keeps the last console lines of machines that did not register, before the machines end.

When a person looks, the machine is gone, and its cloud forgets the console soon after.
"""

from __future__ import annotations

import logging
import re
import sqlite3
from collections.abc import Iterator, Sequence

from slurm_elastic.base.redaction import redacted
from slurm_elastic.controller.context import Site
from slurm_elastic.model.causes.pool_failures import ConsoleRead
from slurm_elastic.model.protocols import Console
from slurm_elastic.state.audit_trail import pool_subject
from slurm_elastic.state.ledger import Machine

log = logging.getLogger(__name__)

KIND = "console"
CONSOLE_LINES = 12
MAX_LINE_LENGTH = 200
MAX_CONSOLES = 2
"""Consoles that we read for one failure. The other machines mostly failed for the same cause, and
each call delays the cloud's worker.
"""
_MAX_TEXT = 64 * 1024  # characters of a console that are looked at, from its end
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")


def read_consoles(site: Site, cloud: str, machines: Sequence[Machine]) -> tuple[ConsoleRead, ...]:
    """The last console lines of these machines, if their cloud shows consoles."""
    provider = site.providers[cloud]
    if not isinstance(provider, Console):
        return ()
    consoles = []
    for machine in machines[:MAX_CONSOLES]:
        id_ = machine.instance.id
        try:
            lines = last_lines(provider.console(id_))
        except Exception as error:  # noqa: BLE001 - an SDK may raise anything; the machine must end
            log.info("no console of %s: %s: %s", id_, type(error).__name__, error)
            continue
        if lines:
            consoles.append(ConsoleRead(machine=id_, lines=lines))
    return tuple(consoles)


def record_consoles(
    site: Site, consoles: Sequence[ConsoleRead], machines: Sequence[Machine], correlation: str
) -> None:
    """Record the consoles that belong to these machines."""
    by_id = {machine.instance.id: machine for machine in machines}
    for console in consoles:
        if machine := by_id.get(console.machine):
            subjects = [machine.instance.node, pool_subject(machine.pool)]
            try:
                site.record(correlation, KIND, subjects, console)
            except sqlite3.Error as error:  # the machine must end, with or without its console
                log.info("console of %s not recorded: %s", console.machine, error)


def last_lines(text: str) -> tuple[str, ...]:
    """The last lines with text, without secrets and control characters."""
    return tuple(_lines(redacted(text[-_MAX_TEXT:])[0]))[-CONSOLE_LINES:]


def _lines(text: str) -> Iterator[str]:
    for line in text.split("\n"):
        # A carriage return begins the line again, and a terminal's colours are no text.
        shown = _COLOURS.sub("", line.rstrip("\r").rpartition("\r")[2])
        shown = "".join(c if c.isprintable() else " " for c in shown).strip()
        if shown:
            yield shown if len(shown) <= MAX_LINE_LENGTH else f"{shown[: MAX_LINE_LENGTH - 3]}..."
