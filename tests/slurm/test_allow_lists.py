"""Allow lists that Slurm cannot apply are named before the install."""

from __future__ import annotations

import grp
import pwd
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from needs import unless

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.config import configfile
from slurm_elastic.slurm.conf import check, plan
from slurm_elastic.slurm.conf.checks import allow_lists
from slurm_elastic.slurm.conf.plan import ConfPlan
from slurm_elastic.watch.doctor import head
from tests.slurm import small_sites

pytestmark = unless("slurmctld")


@pytest.fixture
def root() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="se-allow-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def planned(root: Path, allow: str, extra: str = "") -> ConfPlan:
    conf = small_sites.copy("default-1", root)
    conf.write_text(f"{conf.read_text()}{extra}")
    text = small_sites.CONFIGURATION.replace("groups: [users]", allow)
    text = text.format(cluster="alpha", conf=conf)
    return plan.make(configfile.parse(text, "slurm-elastic.yaml"))


@pytest.mark.parametrize(
    ("allow", "key"),
    [("accounts: [phys]", "allow.accounts: phys"), ("qos: [cloud]", "allow.qos: cloud")],
)
@pytest.mark.parametrize(
    ("storage", "place"),
    [
        ("", ": AccountingStorageType: found not set"),
        (
            "AccountingStorageType=accounting_storage/none\n",
            ":10: AccountingStorageType: found accounting_storage/none",
        ),
    ],
)
def test_accounts_and_qos_without_slurmdbd_are_refused(
    root: Path, allow: str, key: str, storage: str, place: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        check.check(planned(root, allow, storage))
    (problem,) = refused.value.problems
    assert problem.startswith(f"{root}/etc/slurm.conf{place}, expected accounting_storage/slurmdbd")
    assert key in problem


def test_accounts_with_slurmdbd_are_taken(root: Path) -> None:
    site = planned(root, "accounts: [phys]", "AccountingStorageType=accounting_storage/slurmdbd\n")
    assert not list(allow_lists.conflicts(site.config, site.site))


def test_a_group_that_this_host_lacks_is_a_note(root: Path) -> None:
    notices = planned(root, "groups: [users, nosuchgroup]").notices
    (line,) = [notice for notice in notices if "nosuchgroup" in notice]
    assert line.startswith("who may use aws: this host has no group nosuchgroup; correct the name")
    assert not any("no group users" in notice for notice in notices)


def test_a_group_without_members_is_the_first_note(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = grp.struct_group(("users", "x", 54321, []))
    monkeypatch.setattr(grp, "getgrnam", lambda _: empty)
    line = planned(root, "groups: [users]").notices[0]
    assert line.startswith("who may use aws: group users has no member on this host; name a group")
    assert "EnforcePartLimits=ALL" in line


@pytest.mark.parametrize("how", ["listed", "primary"])
def test_a_group_with_members_is_no_note(
    root: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    gid, members = (54321, ["mary"]) if how == "listed" else (pwd.getpwnam("root").pw_gid, [])
    group = grp.struct_group(("users", "x", gid, members))
    monkeypatch.setattr(grp, "getgrnam", lambda _: group)
    assert not any("who may use" in line for line in planned(root, "groups: [users]").notices)


def test_a_group_without_members_is_noted_for_every_cloud_that_has_it(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = planned(root, "groups: [users]").config
    (cloud,) = config.clouds
    monkeypatch.setattr(grp, "getgrnam", lambda _: grp.struct_group(("users", "x", 54321, [])))
    two = replace(config, clouds=(cloud, replace(cloud, name="lab")))
    (flaw,) = allow_lists.group_flaws(two)
    assert flaw.clouds == "aws, lab"
    (finding,) = head.allowed_groups(two)
    assert finding.observed == "group users has no member on this host"
