"""For all tests: the caller's cloud credentials, configuration and proxies are not there."""

from __future__ import annotations

import gc
import ipaddress
import os
import shutil
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import Any

import boto3
import leaks
import pytest
from guarded import guard_all
from hypothesis import HealthCheck, settings
from order import FromBothEnds, longest_first, mark_engines, real, shuffled, slowest

from slurm_elastic.base.processes import heap, service_remedies
from slurm_elastic.sandbox import botocore_data
from slurm_elastic.sandbox.loopback_only import isolated_env

# Last in the path: below /root, where SlurmUser cannot read, the package is the installed copy.
sys.path.append(str(Path(__file__).parents[1]))
# A contract's assertions explain themselves like those of a test module. Before anything imports it.
pytest.register_assert_rewrite("slurm_elastic.testing", "tests.slurm.contract")
pytest_plugins = ["needs", "realcloud.docker.fixtures", "realcloud.openstack.fixtures"]

botocore_data.cache_shipped_files()
# A service that runs in a test's process must not go through all objects of it every few minutes.
heap.share_one = lambda: None
_isolated = isolated_env(os.environ)
for _name in os.environ.keys() - _isolated.keys():
    del os.environ[_name]
os.environ.update(_isolated)


def _stay_here(event: str, arguments: tuple[object, ...]) -> None:
    """No test of this process talks to anybody but this machine and networks made on it."""
    if event != "socket.connect":
        return
    match arguments[1]:
        case (str(host), int(_), *_):
            pass
        case _:
            return  # a unix socket
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return  # a name: what it means is connected to next
    # Loopback, link-local and the documentation's networks count as private; no TCP goes to many.
    if not (address.is_private or address.is_multicast):
        raise PermissionError(f"a test would connect to {host}")


sys.addaudithook(_stay_here)


# Machines are shared and slow at times: no test of ours says anything about time.
settings.register_profile(
    "explore", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
# The same examples each time: a change is judged by what it changes. New ones are looked for by
# pytest --hypothesis-profile=explore.
settings.register_profile("shared", settings.get_profile("explore"), derandomize=True)
settings.load_profile("shared")


# The machine of the tests runs no systemd, and messages are read as a usual head has them.
service_remedies.has_systemd = lambda: True


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    """A test that changes the process for the next ones fails itself. The first fixture, so the last to end."""
    before = leaks.state()
    yield
    if left := leaks.left(before, leaks.state()):
        pytest.fail(f"the test leaves changes behind:\n{left}", pytrace=False)


@pytest.fixture(autouse=True)
def _no_session_of_another_test(_nothing_is_left: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """boto3 keeps the credentials that its first client found in the environment."""
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)


@pytest.fixture
def guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads touch what they share under its lock alone."""
    guard_all(monkeypatch)


_WORKED = pytest.StashKey[float]()
_spent: defaultdict[str, float] = defaultdict(float)  # seconds by file
_worked: defaultdict[str, float] = defaultdict(float)  # seconds of a processor by file


def pytest_addoption(parser: pytest.Parser) -> None:
    """Golden files are made anew by the test that compares them; no test needs another's order."""
    parser.addoption(
        "--update-screens",
        action="store_true",
        help="write tests/golden/screens and tests/golden/causes.txt",
    )
    parser.addoption("--shuffle", metavar="SEED", help="files and their tests in another order")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Spare the garbage collector what is collected, which lives as long as the process.

    Each of the processes side by side makes 300,000 objects here that no test frees.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by their marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests on a real slurmctld or engine come last: what fails fast fails first.

    Side by side the files that take longest start first, so that none is left alone at the end.
    """
    mark_engines(items)
    if seed := config.getoption("--shuffle"):
        items[:] = shuffled(items, seed)
    elif hasattr(config, "workerinput"):  # one of several processes: it does not know how many
        longest_first(items, slowest())
    else:
        items.sort(key=real)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> FromBothEnds | None:
    """For --dist loadfile ours; None: xdist's own."""
    return FromBothEnds(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    """What the processor did since the last report goes with this one, also from another process."""
    report = yield
    worked = sum(os.times()[:4])  # this process and its children that have ended
    report.worked = worked - item.config.stash.get(_WORKED, 0.0)
    item.config.stash[_WORKED] = worked
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Say at once what fails: a whole run takes a while. Note how long each file takes."""
    file = report.nodeid.partition("::")[0]
    _spent[file] += report.duration
    _worked[file] += getattr(report, "worked", 0.0)
    if report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
        failed = f"\nfails: {report.nodeid} ({report.when})\n{_reason(report)}"
        print(failed, file=sys.__stderr__, flush=True)


def _reason(report: pytest.TestReport) -> str:
    """Where and by which words, in a few lines: a run that is ended from outside says no more."""
    crash = getattr(report.longrepr, "reprcrash", None)
    text = f"{crash.path}:{crash.lineno}: {crash.message}" if crash else str(report.longrepr)
    words = " ".join(text.split())
    return f"  {words[:500]} ... {words[-1000:]}" if len(words) > 1500 else f"  {words}"


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Leave how long each file took, the slowest first, where a whole run can be looked into."""
    if "PYTEST_XDIST_WORKER" in os.environ or len(_spent) < 20:
        return
    cache = session.config.rootpath / ".pytest_cache"
    cache.mkdir(exist_ok=True)
    (cache / "slowest.txt").write_text(_by_seconds(_spent))
    (cache / "processor.txt").write_text(_by_seconds(_worked))


def _by_seconds(spent: Mapping[str, float]) -> str:
    slowest = sorted(spent.items(), key=lambda file: file[1], reverse=True)
    return "".join(f"{seconds:8.1f} s  {file}\n" for file, seconds in slowest)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Where a long run's processor time went, by folder."""
    if len(_worked) < 20:
        return
    folders: Counter[str] = Counter()
    for file, seconds in _worked.items():
        folders["/".join(file.split("/")[:2])] += round(seconds)
    terminalreporter.section("processor time by folder")
    for folder, total in folders.most_common():
        terminalreporter.line(f"{total:6} s  {folder}")
    terminalreporter.line(f"{folders.total():6} s  together")


@pytest.fixture
def open_path() -> Iterator[Path]:
    """A short directory that every user reaches: those of pytest are their user's alone."""
    made = Path(tempfile.mkdtemp(prefix="slurm-elastic-test-", dir="/tmp"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)
