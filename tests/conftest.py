"""For all tests: the caller's cloud credentials, configuration and proxies are not there."""

from __future__ import annotations

import ipaddress
import os
import sys

import pytest
from hypothesis import HealthCheck, settings

from slurm_elastic.sandbox.endpoints import isolated_env

# The contract's assertions explain themselves like those of a test module. Before anything imports it.
pytest.register_assert_rewrite("providers.contract")
pytest_plugins = ["realcloud.docker.fixtures", "realcloud.openstack.fixtures"]

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
    "shared", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("shared")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests on a real slurmctld come last: what fails fast fails first.

    Side by side they come first, as they take longest and mostly wait.
    """
    side_by_side = bool(getattr(config.option, "numprocesses", None))
    items.sort(key=lambda item: (item.get_closest_marker("e2e") is None) == side_by_side)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Say at once what fails: a whole run takes a while."""
    if report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
        print(f"\nfails: {report.nodeid} ({report.when})", file=sys.__stderr__, flush=True)
