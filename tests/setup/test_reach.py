"""``init`` looks for clouds, and reports what is wrong with each in its own table."""

from __future__ import annotations

import logging
import os
import pwd
from types import SimpleNamespace
from typing import NoReturn, cast

import pytest

from slurm_elastic.config.cloud_kinds import CloudTable
from slurm_elastic.config.found import SearchPlace
from slurm_elastic.setup import reach

ERROR = (
    "HTTPSConnectionPool(host='keystone.example.org', port=5000): " + "retries " * 40 + "the end"
)


class Kinds:
    """One kind of cloud, whose library logs a warning and fails."""

    def names(self) -> list[str]:
        return ["openstack"]

    def kind(self, name: str) -> SimpleNamespace:
        return SimpleNamespace(found=self._fail)

    def _fail(self, place: SearchPlace) -> NoReturn:
        logging.getLogger("keystoneauth").warning("failed to discover versions")
        raise RuntimeError(ERROR)


def test_a_failed_search_is_one_finding_without_the_librarys_warnings(
    caplog: pytest.LogCaptureFixture,
) -> None:
    place, user = cast("SearchPlace", None), pwd.getpwuid(os.getuid()).pw_name
    (cloud,) = reach.look(cast("CloudTable", Kinds()), place, user)
    assert not cloud.usable
    assert cloud.enable.startswith("RuntimeError: HTTPSConnectionPool(host='keystone.example.org'")
    assert cloud.enable.endswith("the end")
    assert "..." in cloud.enable, "people see that the text was cut"
    assert not caplog.records
    assert logging.root.manager.disable == logging.NOTSET, "later warnings are logged again"
