"""For all tests: the caller's cloud credentials, configuration and proxies are not there."""

from __future__ import annotations

import os

import pytest

from slurm_elastic.sandbox.endpoints import isolated_env

_isolated = isolated_env(os.environ)
for _name in os.environ.keys() - _isolated.keys():
    del os.environ[_name]
os.environ.update(_isolated)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests on a real slurmctld come last: what fails fast fails first."""
    items.sort(key=lambda item: item.get_closest_marker("e2e") is not None)
