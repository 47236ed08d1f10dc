"""``slurm-elastic web``: serve a page of status, explain, cost, doctor, and with actions."""

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
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from slurm_elastic.base.errors import SlurmElasticError
from slurm_elastic.base.extras import missing_module
from slurm_elastic.base.month import month_at, parse_month
from slurm_elastic.base.processes.whole_group import run_whole
from slurm_elastic.base.units import brief
from slurm_elastic.cli.arguments import CONFIG_VARIABLE, DEFAULT_CONFIG
from slurm_elastic.cli.helptext import examples
from slurm_elastic.cli.jobs import explain, mine
from slurm_elastic.cli.machine_readable import as_json
from slurm_elastic.cli.operate.clusters_table import gather_clusters
from slurm_elastic.cli.operate.status import PERIOD_S, gather, gather_day
from slurm_elastic.cli.orders.page_actions import PageActions
from slurm_elastic.cli.reports import cost, report
from slurm_elastic.cli.reports.month_page import web_page
from slurm_elastic.config import Config
from slurm_elastic.config.fresh import FreshConfig
from slurm_elastic.features.money.cost_keys import By
from slurm_elastic.model.protocols import Slurm
from slurm_elastic.slurm.client.prompt import PromptCli
from slurm_elastic.state.ledger.retention import MACHINES_KEPT
from slurm_elastic.watch.door.client import costs_of, own_jobs_of
from slurm_elastic.watch.door.orders import name_of
from slurm_elastic.watch.door.questions import CostAsk, OwnJobsAsk, trusted
from slurm_elastic.watch.door.records import may_read
from slurm_elastic.watch.door.rights import own_person
from slurm_elastic.watch.view import status_view
from slurm_elastic.watch.view.attention import with_broken_file
from slurm_elastic.watch.view.day import DaySpan
from slurm_elastic.watch.web.actions import ActionDesk
from slurm_elastic.watch.web.documents import (
    VISITOR,
    Documents,
    DocumentSource,
    Query,
    parameter,
)
from slurm_elastic.watch.web.policy import HTML
from slurm_elastic.watch.web.visitors import OwnVisitor, SocketVisitors

if TYPE_CHECKING:
    from wsgiref.types import WSGIApplication

    from slurm_elastic.watch.web.listening import ListenAddress

PORT = 8411
"""The port in examples, and on the user's own computer in the printed ssh command."""
EVERYONE = "*"  # stands for all users in the query of "mine"
DOCTOR_TTL_S = 300.0
"""Doctor's findings are cached for this long. It is also doctor's time-out."""
REPORT_TTL_S = 900.0
REPORT_SIMULATION_S = 30.0
"""Time limit of the simulation, for which the browser waits."""
MAX_MONTHS = 7  # that the report links to
_NAME = re.compile(r"(\*\.)?[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "web",
        description="Serve a page with the cluster's state, its day, decisions, costs, checkpoints "
        "and doctor's findings. It shows what these commands show to the user who runs it, within "
        "PrivateData. Visitors of its unix socket may also pause, limit, drain and so on, by the "
        "rules of these commands. By default it listens at a unix socket that "
        "only its owner (and --group) can open; with --listen HOST:PORT at a port of this host "
        "only, and its address then contains a key.",
        epilog=examples("slurm-elastic web", f"slurm-elastic web --listen 127.0.0.1:{PORT}"),
    )
    parser.add_argument(
        "--listen", type=_place, metavar="PATH|HOST:PORT",
        help="listen at this unix socket, or at this port of loopback (0: any free port; "
        "default: a socket of the user's own, which is printed)",
    )  # fmt: skip
    parser.add_argument(
        "--group", metavar="GROUP", default="",
        help="let this group open the unix socket, too: it sees all that the server's user sees",
    )  # fmt: skip
    parser.add_argument(
        "--name", metavar="HOST", action="append", default=[], type=_host,
        help="also answer to this host name, which the site's web server forwards",
    )  # fmt: skip
    parser.add_argument(
        "--read-only", action="store_true", help="show the page without its actions"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Serve until interrupted. SlurmElasticError if a Python package is missing."""
    # A broken file must not take the page away: it shows what runs, and can brake.
    fresh = FreshConfig(Path(args.config), or_installed=True)
    fresh.get()  # ConfigError before the page listens
    try:
        from slurm_elastic.watch.web.acting import ActRoutes
        from slurm_elastic.watch.web.listening import listening, own_place
        from slurm_elastic.watch.web.server import OWN_NAMES, application, serve
    except ModuleNotFoundError as error:
        raise SlurmElasticError(missing_module(error, "dashboard")) from error
    address: ListenAddress | None = args.listen
    if args.group and (address is None or address.path is None):
        raise SlurmElasticError("--group is for a unix socket: give --listen a path")
    documents = Documents(current_sources(fresh, Path(args.config)))
    with contextlib.ExitStack() as closing:
        address = address or closing.enter_context(own_place())
        link = closing.enter_context(listening(address, args.group))
        key = "" if address.path else secrets.token_urlsafe(24)
        port = 0 if address.path else link.getsockname()[1]
        print(f"slurm-elastic web: {_address_text(address, port, key, args.group)}", flush=True)
        names = {*OWN_NAMES, *args.name, *([address.host] if address.host else [])}
        visitors = socket_visitors(fresh)
        desk = ActionDesk(PageActions(Path(args.config)), args.name)
        app = application(
            documents, names=sorted(names), key=key, visitors=visitors,
            acting=None if args.read_only else ActRoutes(desk, visitors),
        )  # fmt: skip
        serve(app, link, grp.getgrnam(args.group).gr_gid if args.group else None)
    return 0


def socket_visitors(fresh: FreshConfig) -> SocketVisitors:
    """The visitors of the page's socket, by the configuration that the file has at each request."""
    return SocketVisitors(lambda: fresh.get().users.page_proxy, lambda: trusted(fresh.get()))


def wsgi() -> WSGIApplication:
    """The page for a web server that starts one process per user, such as Open OnDemand."""
    from slurm_elastic.watch.web.wsgi import application

    file = Path(os.environ.get(CONFIG_VARIABLE) or DEFAULT_CONFIG)
    documents = Documents(current_sources(FreshConfig(file, or_installed=True), file))
    # The web server has checked the host, and started this process for its one visitor.
    return application(documents, ActionDesk(PageActions(file)), OwnVisitor(own_person))


def current_sources(fresh: FreshConfig, file: Path) -> Mapping[str, DocumentSource]:
    """The documents of the page, each made by the configuration that the file has then."""
    latest = _LatestSources(fresh, file)

    def make(name: str, query: Query) -> str:
        return latest.get()[name].make(query)

    return {
        name: msgspec.structs.replace(source, make=functools.partial(make, name))
        for name, source in latest.get().items()
    }


class _LatestSources:
    """The sources by the newest configuration: the same objects until it changes, because what
    reads Slurm remembers some answers. Threads may make them twice, which costs nothing.
    """

    def __init__(self, fresh: FreshConfig, file: Path) -> None:
        self._fresh, self._file = fresh, file
        self._made: tuple[Config, Mapping[str, DocumentSource]] | None = None

    def get(self) -> Mapping[str, DocumentSource]:
        config, configured = self._fresh.get(), self._made
        if configured is None or configured[0] is not config:
            slurm = PromptCli(config.slurm)
            configured = config, sources(config, slurm, self._file, lambda: self._fresh.trouble)
            self._made = configured
        return configured[1]


def sources(
    config: Config, slurm: Slurm, file: Path, trouble: Callable[[], str] = str
) -> Mapping[str, DocumentSource]:
    """The documents of the page: the JSON of the commands of the same names. ``trouble``: why the
    file of the configuration cannot be used as it is now, "" if it can.
    """
    partial = functools.partial
    return {
        "status": DocumentSource(make=partial(_status, config, slurm, trouble), fresh=PERIOD_S),
        "day": DocumentSource(make=partial(_day, config, slurm), fresh=60.0, takes=("span",)),
        "explain": DocumentSource(
            make=partial(_explain, config, slurm), fresh=2.0, takes=("subject",)
        ),
        "cost": DocumentSource(make=partial(_cost, config), fresh=30.0, takes=("by", "since")),
        "mine": DocumentSource(
            make=partial(_mine, config, slurm), fresh=10.0, takes=("user", VISITOR)
        ),
        "report": DocumentSource(
            make=partial(_report, config), fresh=REPORT_TTL_S, takes=("month",), kind=HTML
        ),
        "clusters": DocumentSource(make=partial(_clusters, config, slurm), fresh=30.0),
        "doctor": DocumentSource(make=partial(_doctor, file), fresh=DOCTOR_TTL_S),
    }


def _status(config: Config, slurm: Slurm, trouble: Callable[[], str], _: Query) -> str:
    view = status_view(config, gather(config, slurm, time.time()))
    return as_json(with_broken_file(view, trouble()))


def _clusters(config: Config, slurm: Slurm, _: Query) -> str:
    own = status_view(config, gather(config, slurm, time.time()))
    return as_json(gather_clusters(config, own))


def _day(config: Config, slurm: Slurm, query: Query) -> str:
    span = parameter(query, "span", DaySpan.DAY)
    if span not in set(DaySpan):
        raise SlurmElasticError(f"day of {span!r}: expected one of {', '.join(DaySpan)}")
    return as_json(gather_day(config, slurm, time.time(), DaySpan(span)))


def _explain(config: Config, slurm: Slurm, query: Query) -> str:
    subject = parameter(query, "subject").strip()
    if not subject:
        raise SlurmElasticError("explain needs a node, a job, a pool or a cloud")
    found = explain.explanations(config, slurm, subject)
    return "\n".join(as_json(explain.document(explanation)) for explanation in found)


def _cost(config: Config, query: Query) -> str:
    by, since, now = parameter(query, "by", By.ACCOUNT), parameter(query, "since"), time.time()
    if by not in set(By):
        raise SlurmElasticError(f"cost by {by!r}: expected one of {', '.join(By)}")
    try:
        begin = cost.point(since) if since else cost.month(now)
    except argparse.ArgumentTypeError as error:
        raise SlurmElasticError(f"cost since {error}") from error
    costs = costs_of(config, CostAsk(by=By(by), since=begin), now)
    return as_json(cost.document(costs, config))


def _mine(config: Config, slurm: Slurm, query: Query) -> str:
    user, now = parameter(query, "user"), time.time()
    if not user and may_read(config):
        # The server may show all jobs; each of its visitors sees their own first.
        user = query.get(VISITOR, "")
    everyone = user == EVERYONE
    ask = OwnJobsAsk(since=now - mine.DAY_S, user="" if everyone else user, everyone=everyone)
    return as_json(own_jobs_of(config, slurm, ask, now))


def _report(config: Config, query: Query) -> str:
    now = time.time()
    last_month = month_at(now).previous
    text = parameter(query, "month")
    try:
        month = parse_month(text) if text else last_month
    except ValueError as error:
        raise SlurmElasticError(str(error)) from error
    month_report = report.gather(config, month, now)
    if not month_report.own_jobs_only:
        month_report = report.simulated(config, month_report, now, REPORT_SIMULATION_S)
    months = [last_month.next]
    # Users see no record of others, so for them the first launch is unknown.
    first = month_report.first_launch or (0.0 if month_report.own_jobs_only else now)
    oldest = max(month_at(first).begin, now - MACHINES_KEPT)
    while len(months) < MAX_MONTHS and months[-1].previous.begin >= oldest:
        months.append(months[-1].previous)
    return web_page(month_report, months[::-1])


def _doctor(file: Path, _: Query) -> str:
    """Run doctor in a process of its own, because it changes its environment and its user."""
    # -P: a file in the current directory must not shadow a module.
    command = [sys.executable, "-P", "-m", "slurm_elastic.cli.main", "--config", str(file)]
    try:
        # Whole, because doctor starts a throw-away slurmctld.
        done = run_whole([*command, "doctor", "--json"], DOCTOR_TTL_S)
    except subprocess.TimeoutExpired as error:
        raise SlurmElasticError(f"doctor did not end within {brief(DOCTOR_TTL_S)}") from error
    if not done.stdout.startswith("{"):
        error_text = done.stderr.strip()
        raise SlurmElasticError(
            error_text.splitlines()[-1] if error_text else "doctor printed nothing"
        )
    return done.stdout


def _place(text: str) -> ListenAddress:
    """Parse a path or HOST:PORT, for argparse."""
    from slurm_elastic.watch.web.listening import place

    try:
        return place(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _host(text: str) -> str:
    """Parse a host name or ``*.domain``, for argparse.

    A bare ``*`` is refused: any web page could then point a name of its own at this server.
    """
    if not _NAME.fullmatch(text):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no host name: expected a name such as head.example.org or *.example.org"
        )
    return text.lower()


def _address_text(address: ListenAddress, port: int, key: str, group: str) -> str:
    if address.path is not None:
        path = address.path.absolute()
        head = os.uname().nodename
        host_text = head if group else f"{name_of(os.geteuid())}@{head}"
        return (
            f"listening at {path}; from your desk: ssh -L {PORT}:{path} {host_text}, "
            f"then http://localhost:{PORT}/"
        )
    return f"http://{address.host}:{port}/?key={key}"
