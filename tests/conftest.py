"""For all tests: the caller's cloud credentials, configuration and proxies are not there."""

from __future__ import annotations

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
