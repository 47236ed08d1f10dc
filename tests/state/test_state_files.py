"""Each file of the state directory is declared, and what two heads share is there for both."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import slurm_elastic
from slurm_elastic.base.errors import ConfigError
from slurm_elastic.config import Config, configfile, policy_choice
from slurm_elastic.config.clouds import InstanceType
from slurm_elastic.features.network.enrolment import word_of
from slurm_elastic.model.cluster import Location
from slurm_elastic.providers.base.hosts.claims import Claim, claims_of
from slurm_elastic.providers.base.hosts.host_settings import HostsCloud
from slurm_elastic.state import heads
from slurm_elastic.state.state_files import STATE_FILES, Keeper, declared, shared_names
from slurm_elastic.state.store.shared_journal import SharedJournal
from tests.controller.world import World, make_config

PACKAGE = Path(slurm_elastic.__file__).parent
_USE = re.compile(
    r"(?:\bstate|_state|state_dir|_state_dir|\.state)(?:\.resolve\(\))? / (?:\"([^\"]+)\"|([\w.]+))"
)
_LOOPS = ("name", "lock")
"""Names of loops over other declarations, of which one is above in the same module."""


def used_names() -> Iterator[str]:
    """The names in the state directory that the package's modules spell or have as constants."""
    for path in sorted(PACKAGE.rglob("*.py")):
        module = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
        for literal, name in _USE.findall(path.read_text(encoding="utf-8")):
            if literal:
                yield literal
            elif name not in _LOOPS:
                value: object = importlib.import_module(module)
                for part in name.split("."):
                    value = getattr(value, part)
                yield str(value)


def test_each_name_in_the_state_directory_is_declared() -> None:
    names = set(used_names())
    assert {"requests", "enrolment.secret", "claims", "pool-order", "ledger.db"} <= names
    assert {name for name in names if declared(name) is None} == set()


def test_a_site_leaves_nothing_that_is_not_declared(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.slurm.submit(1, ["pub1"])
    world.advance(120)
    world.close()
    assert {path.name for path in tmp_path.iterdir() if declared(path.name) is None} == set()


def test_a_head_of_two_leaves_nothing_that_is_not_declared(pair: tuple[Config, Config]) -> None:
    directory = pair[0].state / "journal"
    journal = SharedJournal(directory, "ledger", heads.fence_at(directory))
    assert declared(journal.turn.relative_to(pair[0].state).name) is not None


def test_each_declaration_has_a_reason_and_shared_names_are_no_patterns() -> None:
    assert all(file.reason for file in STATE_FILES)
    shared = [file.name for file in STATE_FILES if file.keeper is Keeper.SHARED]
    assert not [name for name in shared if set(name) & set("*?[")]
    assert {*shared_names(directories=True), *shared_names(directories=False)} == set(shared)


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Config, Config]:
    """The configurations of two heads, each with its own state directory."""
    configs = []
    for host in ("a", "b"):
        state = tmp_path / host
        state.mkdir()
        heads.link(state, tmp_path / "shared")
        configs.append(make_config(state))
    return configs[0], configs[1]


def test_the_other_head_knows_which_hosts_are_switched_on(pair: tuple[Config, Config]) -> None:
    settings = HostsCloud(
        name="rack", location=Location.ON_PREMISES, hosts={"h1": "http://127.0.0.1:1"},
        types={"host": InstanceType(cpus=2, memory=4096, price=0.05)},
    )  # fmt: skip
    first, other = (claims_of(settings, None, config) for config in pair)
    assert first.take("h1", Claim(marks={"node": "h1"}))
    assert other.all().keys() == {"h1"}
    assert not other.take("h1", Claim(marks={}))


def test_the_other_head_gives_a_launch_the_same_word(pair: tuple[Config, Config]) -> None:
    first, other = (word_of(config.state, "g1") for config in pair)
    assert first == other
    assert (pair[1].state / "enrolment.secret").is_symlink()


def test_the_other_head_has_the_chosen_policy(pair: tuple[Config, Config]) -> None:
    first, other = pair
    own = policy_choice.own_policy(first.policies)
    choice = policy_choice.PolicyChoice(
        own=own, policy=own, checked_at=1.0, chosen_at=1.0, reason="cheaper"
    )
    policy_choice.keep(first, choice)
    policy_choice.keep(first, choice)  # again: the first write must not have replaced the link
    assert policy_choice.path_of(other).read_bytes() == policy_choice.path_of(first).read_bytes()
    assert policy_choice.path_of(first).is_symlink()


SITE = """\
cluster: {{name: alps, uuid: 7d1f0c52-8f7e-4d5d-9d5e-111111111111}}
allow: {{groups: [hpc]}}
limits: {{dollars_per_hour: 2}}
ha: {{directory: /shared/slurm-elastic}}
clouds:
  - {{name: rack, provider: redfish, location: on-premises, credentials_file: /etc/bmc.json,
     hosts: {{h1: "https://10.0.0.1/redfish/v1/Systems/1"}}, {claims}
     types: {{host: {{cpus: 2, memory: 4G, price: 0.05}}}}}}
pools:
  - {{name: rack, cloud: rack, nodes: h1, cpus: 2, memory: 4G}}
"""


def test_a_file_of_claims_on_only_one_of_two_heads_is_refused() -> None:
    for claims in ("", "claims_file: /shared/slurm-elastic/claims/rack.db,"):
        configfile.parse(SITE.format(claims=claims), "site.yaml")
    with pytest.raises(
        ConfigError, match=r"claims_file: found '/var/claims.db', expected a file below"
    ):
        configfile.parse(SITE.format(claims="claims_file: /var/claims.db,"), "site.yaml")
