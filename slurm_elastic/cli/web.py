"""``slurm-elastic web``: a page of status, explain, cost, checkpoints and doctor, read-only."""

from __future__ import annotations

import argparse
import functools
import os
import re
import secrets
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from slurm_elastic.books import By
from slurm_elastic.cli import cost, explain
from slurm_elastic.cli.arguments import CONFIG_VARIABLE, DEFAULT_CONFIG
from slurm_elastic.cli.helptext import examples
from slurm_elastic.cli.status import PERIOD, gather, gather_day
from slurm_elastic.cli.streams import as_json
from slurm_elastic.config import Config
from slurm_elastic.config.configfile import load
from slurm_elastic.door.asks import CostAsk
from slurm_elastic.door.client import costs_of
from slurm_elastic.errors import SlurmElasticError
from slurm_elastic.protocols import Slurm
from slurm_elastic.slurm.prompt import PromptCli
from slurm_elastic.view import status_view
from slurm_elastic.web.documents import Documents, Query, Source, word

if TYPE_CHECKING:
    from wsgiref.types import WSGIApplication

    from slurm_elastic.web.listening import Place

LISTEN = "127.0.0.1:8411"
DOCTOR = 300.0
"""Seconds for which doctor's findings are shown again, and for which it is waited for."""
_NAME = re.compile(r"(\*\.)?[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")
FRESH = {"status": PERIOD, "day": 60.0, "explain": 2.0, "cost": 30.0, "doctor": DOCTOR}


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the sub-command."""
    parser = subparsers.add_parser(
        "web",
        description="Serve a page with the cluster now, its day, decisions, costs, checkpoints and "
        "doctor's findings. It changes nothing and shows what these commands show to whoever runs "
        "it: to a user as much as PrivateData allows. It listens on this host alone, at a port "
        "whose address has a key, or at a unix socket that only its owner (and --group) can open.",
        epilog=examples(
            "slurm-elastic web",
            "slurm-elastic web --listen /run/user/1000/slurm-elastic.sock",
        ),
    )
    parser.add_argument(
        "--listen", type=_place, metavar="PATH|HOST:PORT", default=LISTEN,
        help="listen at this unix socket, or at this port of loopback (0: any that is free; "
        f"default: {LISTEN})",
    )  # fmt: skip
    parser.add_argument(
        "--group", metavar="GROUP", default="",
        help="let this group open the unix socket, too: it sees what the server's user may see",
    )  # fmt: skip
    parser.add_argument(
        "--name", metavar="HOST", action="append", default=[], type=_host,
        help="answer to this host name as well, as the site's web server passes it on",
    )  # fmt: skip
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Serve until it is interrupted."""
    config = load(Path(args.config))
    try:
        from slurm_elastic.web.listening import listening
        from slurm_elastic.web.server import OWN_NAMES, application, serve
    except ModuleNotFoundError as error:
        raise SlurmElasticError(
            f"Python module {error.name!r} is missing; install slurm-elastic[dashboard]"
        ) from error
    where: Place = args.listen
    if args.group and where.path is None:
        raise SlurmElasticError("--group is for a unix socket: give --listen a path")
    key = "" if where.path else secrets.token_urlsafe(24)
    made = Documents(sources(config, PromptCli(config.slurm), Path(args.config)), FRESH)
    with listening(where, args.group) as link:
        port = 0 if where.path else link.getsockname()[1]
        print(f"slurm-elastic web: {_told(where, port, key)}", flush=True)
        names = {*OWN_NAMES, *args.name, *([where.host] if where.host else [])}
        serve(application(made, names=sorted(names), key=key), link)
    return 0


def wsgi() -> WSGIApplication:
    """The page for a web server that starts a process for each user, as Open OnDemand does."""
    from slurm_elastic.web.wsgi import application

    file = Path(os.environ.get(CONFIG_VARIABLE) or DEFAULT_CONFIG)
    config = load(file)
    return application(Documents(sources(config, PromptCli(config.slurm), file), FRESH))


def sources(config: Config, slurm: Slurm, file: Path) -> Mapping[str, Source]:
    """The documents of the page, as the commands of the same names print them."""
    return {
        "status": functools.partial(_status, config, slurm),
        "day": functools.partial(_day, config, slurm),
        "explain": functools.partial(_explain, config, slurm),
        "cost": functools.partial(_cost, config),
        "doctor": functools.partial(_doctor, file),
    }


def _status(config: Config, slurm: Slurm, _: Query) -> str:
    return as_json(status_view(config, gather(config, slurm, time.time())))


def _day(config: Config, slurm: Slurm, _: Query) -> str:
    return as_json(gather_day(config, slurm, time.time()))


def _explain(config: Config, slurm: Slurm, query: Query) -> str:
    subject = word(query, "subject").strip()
    if not subject:
        raise SlurmElasticError("explain needs a node, a job, a pool or a cloud")
    return "\n".join(map(as_json, explain.explanations(config, slurm, subject)))


def _cost(config: Config, query: Query) -> str:
    by, since, now = word(query, "by", By.ACCOUNT), word(query, "since"), time.time()
    if by not in set(By):
        raise SlurmElasticError(f"cost by {by!r}: expected one of {', '.join(By)}")
    try:
        begin = cost.point(since) if since else cost.month(now)
    except argparse.ArgumentTypeError as error:
        raise SlurmElasticError(f"cost since {error}") from error
    return as_json(cost.document(costs_of(config, CostAsk(by=By(by), since=begin), now)))


def _doctor(file: Path, _: Query) -> str:
    """By a process of its own: it takes on the services' environment, and asks clouds."""
    command = [sys.executable, "-P", "-m", "slurm_elastic.cli.main", "--config", str(file)]
    try:
        done = subprocess.run(
            [*command, "doctor", "--json"], capture_output=True, timeout=DOCTOR, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise SlurmElasticError(f"doctor does not end within {DOCTOR:.0f} s") from error
    if not done.stdout.startswith(b"{"):
        said = done.stderr.decode(errors="backslashreplace").strip()
        raise SlurmElasticError(said.splitlines()[-1] if said else "doctor says nothing")
    return done.stdout.decode()


def _place(text: str) -> Place:
    """For argparse."""
    from slurm_elastic.web.listening import place

    try:
        return place(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _host(text: str) -> str:
    """For argparse: a name, or all below one; not every name, which other pages could take on."""
    if not _NAME.fullmatch(text):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no host name: expected one such as head.example.org or *.example.org"
        )
    return text.lower()


def _told(where: Place, port: int, key: str) -> str:
    if where.path is not None:
        path = where.path.absolute()
        return f"listening at {path}; from your desk: ssh -L 8411:{path} {os.uname().nodename}"
    return f"http://{where.host}:{port}/?key={key}"
