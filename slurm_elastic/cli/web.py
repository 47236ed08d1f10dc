"""``slurm-elastic web``: a page of status, explain, cost, checkpoints and doctor, read-only."""

from __future__ import annotations

import argparse
import contextlib
import functools
import grp
import os
import re
import secrets
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from slurm_elastic.base.errors import SlurmElasticError
from slurm_elastic.base.extras import missing_module
from slurm_elastic.base.units import brief
from slurm_elastic.cli import cost, explain
from slurm_elastic.cli.arguments import CONFIG_VARIABLE, DEFAULT_CONFIG
from slurm_elastic.cli.helptext import examples
from slurm_elastic.cli.machine_readable import as_json
from slurm_elastic.cli.status import PERIOD, gather, gather_day
from slurm_elastic.config import Config
from slurm_elastic.config.configfile import load
from slurm_elastic.features.books import By
from slurm_elastic.model.protocols import Slurm
from slurm_elastic.slurm.client.prompt import PromptCli
from slurm_elastic.watch.door.client import costs_of
from slurm_elastic.watch.door.orders import name_of
from slurm_elastic.watch.door.questions import CostAsk
from slurm_elastic.watch.view import status_view
from slurm_elastic.watch.view.day import Span
from slurm_elastic.watch.web.documents import Documents, Query, Source, word

if TYPE_CHECKING:
    from wsgiref.types import WSGIApplication

    from slurm_elastic.watch.web.listening import ListenAddress

PORT = 8411
"""A port of loopback where nothing else is told; on a desk, and here where one is asked for."""
DOCTOR = 300.0
"""Seconds for which doctor's findings are shown again, and for which it is waited for."""
_NAME = re.compile(r"(\*\.)?[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "web",
        description="Serve a page with the cluster now, its day, decisions, costs, checkpoints and "
        "doctor's findings. It changes nothing and shows what these commands show to whoever runs "
        "it: to a user as much as PrivateData allows. It listens at a unix socket that only its "
        "owner (and --group) can open, or, where that is asked for, at a port of this host alone, "
        "whose address has a key.",
        epilog=examples("slurm-elastic web", f"slurm-elastic web --listen 127.0.0.1:{PORT}"),
    )
    parser.add_argument(
        "--listen", type=_place, metavar="PATH|HOST:PORT",
        help="listen at this unix socket, or at this port of loopback (0: any that is free; "
        "default: a socket of the user's own, which is told)",
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
        from slurm_elastic.watch.web.listening import listening, own_place
        from slurm_elastic.watch.web.server import OWN_NAMES, application, serve
    except ModuleNotFoundError as error:
        raise SlurmElasticError(missing_module(error, "dashboard")) from error
    where: ListenAddress | None = args.listen
    if args.group and (where is None or where.path is None):
        raise SlurmElasticError("--group is for a unix socket: give --listen a path")
    made = Documents(sources(config, PromptCli(config.slurm), Path(args.config)))
    with contextlib.ExitStack() as closing:
        where = where or closing.enter_context(own_place())
        link = closing.enter_context(listening(where, args.group))
        key = "" if where.path else secrets.token_urlsafe(24)
        port = 0 if where.path else link.getsockname()[1]
        print(f"slurm-elastic web: {_told(where, port, key, args.group)}", flush=True)
        names = {*OWN_NAMES, *args.name, *([where.host] if where.host else [])}
        app = application(made, names=sorted(names), key=key)
        serve(app, link, grp.getgrnam(args.group).gr_gid if args.group else None)
    return 0


def wsgi() -> WSGIApplication:
    """The page for a web server that starts a process for each user, as Open OnDemand does."""
    from slurm_elastic.watch.web.wsgi import application

    file = Path(os.environ.get(CONFIG_VARIABLE) or DEFAULT_CONFIG)
    config = load(file)
    return application(Documents(sources(config, PromptCli(config.slurm), file)))


def sources(config: Config, slurm: Slurm, file: Path) -> Mapping[str, Source]:
    """The documents of the page, as the commands of the same names print them."""
    partial = functools.partial
    return {
        "status": Source(make=partial(_status, config, slurm), fresh=PERIOD),
        "day": Source(make=partial(_day, config, slurm), fresh=60.0, takes=("span",)),
        "explain": Source(make=partial(_explain, config, slurm), fresh=2.0, takes=("subject",)),
        "cost": Source(make=partial(_cost, config), fresh=30.0, takes=("by", "since")),
        "doctor": Source(make=partial(_doctor, file), fresh=DOCTOR),
    }


def _status(config: Config, slurm: Slurm, _: Query) -> str:
    return as_json(status_view(config, gather(config, slurm, time.time())))


def _day(config: Config, slurm: Slurm, query: Query) -> str:
    span = word(query, "span", Span.DAY)
    if span not in set(Span):
        raise SlurmElasticError(f"day of {span!r}: expected one of {', '.join(Span)}")
    return as_json(gather_day(config, slurm, time.time(), Span(span)))


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
        raise SlurmElasticError(f"doctor does not end within {brief(DOCTOR)}") from error
    if not done.stdout.startswith(b"{"):
        said = done.stderr.decode(errors="backslashreplace").strip()
        raise SlurmElasticError(said.splitlines()[-1] if said else "doctor says nothing")
    return done.stdout.decode()


def _place(text: str) -> ListenAddress:
    """For argparse."""
    from slurm_elastic.watch.web.listening import place

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


def _told(where: ListenAddress, port: int, key: str, group: str) -> str:
    if where.path is not None:
        path = where.path.absolute()
        head = os.uname().nodename
        there = head if group else f"{name_of(os.geteuid())}@{head}"
        return (
            f"listening at {path}; from your desk: ssh -L {PORT}:{path} {there}, "
            f"then http://localhost:{PORT}/"
        )
    return f"http://{where.host}:{port}/?key={key}"
