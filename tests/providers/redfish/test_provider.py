"""The provider of hosts with a BMC: the suite of all clouds on OpenStack's BMC emulator; and what is ours
to switch off.
"""

from __future__ import annotations

import os
import subprocess
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pages
import pytest
from msgspec.structs import replace
from needs import ROOT
from patience import eventually, patience
from providers.redfish.bed import HOSTS, Bmcs, MatrixBed, RedfishBed, rack, running

from slurm_elastic.base import trust
from slurm_elastic.base.errors import (
    CapacityError,
    ConfigError,
    InstanceNotFound,
    ProviderError,
    TransientError,
)
from slurm_elastic.base.processes import asking
from slurm_elastic.config import configfile
from slurm_elastic.model.cluster import STANDING, InstanceState, LaunchSpec
from slurm_elastic.model.protocols import Provider, list_tidily
from slurm_elastic.providers import open_provider, redfish
from slurm_elastic.providers.base.hosts import switched
from slurm_elastic.providers.base.hosts.bmc import redfish_of
from slurm_elastic.providers.base.hosts.claims import Claim, Claims
from slurm_elastic.providers.base.hosts.power_command import PowerCommand
from slurm_elastic.state.heads import SupersededError
from slurm_elastic.testing.contract import (
    CLUSTER,
    FaultContract,
    LateFailureContract,
    LaunchContract,
    ScarceContract,
    spec_for,
)
from slurm_elastic.testing.matrix import FaultMatrix

MOST_LINES = 255
"""Without the skeleton, which is text for ``init``."""


@ROOT
@pytest.mark.parametrize(
    ("host", "gateway", "state"),
    [("127.0.0.1", "host.invalid", "on\n"), ("host.invalid", "127.0.0.1", "off\n"),
     ("host.invalid", "host.invalid", "")],
)  # fmt: skip
def test_the_pages_command_for_wake_on_lan_works_within_the_bounds_of_the_unit(
    tmp_path: Path, host: str, gateway: str, state: str
) -> None:
    """Port 22 may be open or refused here. In the unit no program may use file capabilities."""
    command = tmp_path / "power"
    command.write_text(pages.shown("docs/redfish.md", "mac=").text.replace("rack-gw", gateway))
    bounds = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"]
    user = ["--reuid=65534", "--regid=65534", "--clear-groups"]
    words = [*bounds, *user, "sh", "-c", command.read_text(), "power", "state", f"aa:bb/{host}"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=patience(60))
    assert done.stdout == state, done.stderr


@pytest.fixture(scope="module")
def bmcs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bmcs]:
    with running(tmp_path_factory.mktemp("bmcs")) as made:
        yield made


@pytest.fixture
def bed(bmcs: Bmcs, tmp_path: Path) -> RedfishBed:
    return RedfishBed(bmcs, tmp_path)


@pytest.fixture
def new_bed(bmcs: Bmcs) -> Callable[[Path], MatrixBed]:
    return lambda place: MatrixBed(bmcs, place)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One answer proves that a host is off: a minute for each end would be too long here."""
    monkeypatch.setattr(switched, "OFF_PROVEN_S", 0.0)


@pytest.mark.usefixtures("guarded")
class TestRedfishLaunches(LaunchContract): ...


@pytest.mark.usefixtures("guarded")
class TestRedfishScarcity(ScarceContract): ...


@pytest.mark.usefixtures("guarded")
class TestRedfishLateFailures(LateFailureContract): ...


@pytest.mark.usefixtures("guarded")
class TestRedfishFaults(FaultContract):
    asks_for_notices = False


@pytest.mark.release
class TestRedfishMatrix(FaultMatrix): ...


def states(provider: Provider) -> dict[str, InstanceState]:
    return {m.node: m.state for m in list_tidily(provider)}


def aged(bed: RedfishBed, seconds: float) -> Provider:
    """A provider that looks that much later."""
    return MatrixBed.open(bed, lambda: time.time() + seconds)  # type: ignore[arg-type]


# whose a host is


def test_two_heads_that_share_hosts_and_claims_never_use_one_twice(bed: RedfishBed) -> None:
    ours, theirs = bed.open(), bed.open("11111111-2222-3333-4444-555555555555")
    spec = spec_for(bed, ours, 1)
    ours.launch(spec)
    bed.bmcs.press("h1", "Off")  # it has not come up yet
    with pytest.raises(CapacityError, match="h1 was claimed for an earlier launch"):
        theirs.launch(replace(spec, generation="theirs"))


def test_a_file_of_claims_that_was_begun_and_not_made_is_an_empty_one(tmp_path: Path) -> None:
    (tmp_path / "claims.db").touch()
    claims = Claims("rack", tmp_path / "claims.db")
    assert claims.all() == {}
    assert claims.take("h1", Claim(marks={}))


# by a command


PROGRAM = """#!/bin/sh
cd "$(dirname "$0")"
case $1 in
    state) if [ -e "$2.on" ]; then echo on; else echo off; fi ;;
    on)
        [ "$2" != broken ] || { echo "no such outlet" >&2; exit 3; }
        touch "$2.on"
        printf '\\377\\n' ;;
    shutdown) [ ! -e hang ] || { sleep 600 & echo $! >child; wait; }; rm -f "$2.on" ;;
    *) rm -f "$2.on" ;;
esac
"""


@pytest.fixture
def commanded(tmp_path: Path) -> Provider:
    file = tmp_path / "power"
    file.write_text(PROGRAM)
    file.chmod(0o755)
    hosts = {h: f"outlet-{h}" for h in HOSTS} | {"h5": "broken"}
    return open_provider(rack(tmp_path, command=(str(file),), hosts=hosts), CLUSTER)


def test_a_command_switches_hosts_as_well(commanded: Provider, tmp_path: Path) -> None:
    pool = RedfishBed.pool
    spec = LaunchSpec(
        generation="g1", pool=pool, nodes=("h1", "h2"), offer=commanded.offers(pool)[0]
    )
    machines = commanded.launch(spec)
    assert (tmp_path / "outlet-h1.on").exists()
    assert states(commanded) == dict.fromkeys(("h1", "h2"), InstanceState.RUNNING)
    commanded.terminate([m.id for m in machines])
    assert not (tmp_path / "outlet-h1.on").exists()
    assert states(commanded) == {}
    with pytest.raises(TransientError, match="no such outlet"):
        commanded.launch(replace(spec, generation="g2", nodes=("h5",)))


def test_a_command_that_does_not_end_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    file = tmp_path / "power"
    file.write_text(PROGRAM)
    file.chmod(0o755)
    (tmp_path / "hang").touch()
    power = PowerCommand(
        rack(tmp_path, command=(str(file),), hosts={"h1": "x"}, api_timeout=patience(2))
    )
    with pytest.raises(TransientError, match="shutdown did not end in"):
        power.switch("h1", "shutdown")
    child = Path("/proc") / (tmp_path / "child").read_text().strip()
    eventually(lambda: not child.exists() or " Z " in (child / "stat").read_text())


def test_a_head_that_no_longer_acts_gives_no_order_by_a_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other head took over while a call for many hosts gave one order after the other."""
    file = tmp_path / "power"
    file.write_text(f"#!/bin/sh\necho $2 >>{tmp_path}/orders\n")
    file.chmod(0o755)
    hosts = {"h1": "one", "h2": "two"}
    power = PowerCommand(rack(tmp_path, command=(str(file),), hosts=hosts))

    def stands_by() -> None:
        raise SupersededError("headb acts")

    power.switch("h1", "shutdown")
    monkeypatch.setattr(asking, "_gate", stands_by)
    for order in (power.shut_down, power.is_on):
        with pytest.raises(SupersededError):
            order("h2")
    assert (tmp_path / "orders").read_text() == "one\n"


# the configuration


SITE = """
cluster: {name: demo, uuid: 7d1f0c52-4d8e-4f5b-9a3e-0f6c1f5f0a11}
clouds:
  - name: rack
    provider: redfish
    location: on-premises
    hosts: {r1: "https://b1/redfish/v1/Systems/1", r2: "https://b2/redfish/v1/Systems/1"}
    credentials_file: /nonexistent
    types: {host: {cpus: 2, memory: 4G, price: 0.1}}
pools:
  - {name: r, cloud: rack, nodes: "r[1-2]", cpus: 2, memory: 4G, instance_types: [host], markets: [reserved]}
"""


@pytest.mark.parametrize(
    ("right", "wrong", "told"),
    [
        ("r[1-2]", "r[1-3]", r"pools\[0\] \(r\).nodes: found 'r3', expected nodes that clouds\[0\].hosts has"),
        ("https://b2", "b2", "r2: found 'b2/redfish/v1/Systems/1', expected a URL as https"),
        ("https://b2", "http://b2", "r2: found 'http://b2/redfish/v1/Systems/1', expected a URL as https"),
        ("https://b2", "https://b1", "found a host that another node has, too, expected one for each node"),
        ("    credentials_file: /nonexistent\n", "", "found no 'credentials_file', expected a JSON file"),
    ],
)  # fmt: skip
def test_mistakes_are_told(right: str, wrong: str, told: str) -> None:
    configfile.parse(SITE, "site.yaml")
    with pytest.raises(ConfigError, match=told):
        configfile.parse(SITE.replace(right, wrong), "site.yaml")


def test_credentials_that_cannot_be_read_are_a_mistake() -> None:
    config = configfile.parse(SITE, "site.yaml")
    with pytest.raises(ConfigError, match="cloud 'rack': credentials: /nonexistent"):
        open_provider(config.clouds[0], config.cluster, config)


@pytest.mark.parametrize(
    ("content", "mode", "told"),
    [
        (b'{"username": "elastic", "password": "geh\xe4im"}', 0o600, "found no JSON object"),
        (b'{"username": "elastic", "passwort": "geheim"}', 0o600, "found no JSON object"),
        (b'["geheim"]', 0o600, "found no JSON object"),
        (b'{"username": "elastic", "password": "geheim"}', 0o640, r"may be read by others \(mode 0640\); chmod 600"),
    ],
)  # fmt: skip
def test_no_word_of_a_file_of_credentials_is_told(
    tmp_path: Path, content: bytes, mode: int, told: str
) -> None:
    file = tmp_path / "bmc.json"
    file.write_bytes(content)
    file.chmod(mode)
    with pytest.raises(ConfigError, match=told) as raised:
        redfish_of(rack(tmp_path, hosts={"h1": "https://b/1"}, credentials_file=str(file)))
    assert "geh" not in "".join(traceback.format_exception(raised.value))


@ROOT
def test_credentials_of_another_user_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trust, "_slurm_user", set())
    monkeypatch.delenv("SUDO_UID", raising=False)
    file = tmp_path / "bmc.json"
    file.write_text('{"username": "elastic", "password": "secret"}')
    file.chmod(0o600)
    settings = rack(tmp_path, hosts={"h1": "https://b/1"}, credentials_file=str(file))
    redfish_of(settings)
    os.chown(file, 65534, 65534)
    with pytest.raises(ConfigError, match=r"bmc\.json belongs to nobody, not to root"):
        redfish_of(settings)


def test_it_is_small() -> None:
    folder = Path(redfish.__file__).parent
    files = [file for file in folder.glob("*.py") if file.stem != "skeleton"]
    lines = sum(len(file.read_text().splitlines()) for file in files)
    print(f"provider redfish: {lines} lines")
    assert 0 < lines <= MOST_LINES


def test_a_wrong_path_of_a_bmc_ends_no_machine(bed: RedfishBed) -> None:
    """Its firmware was changed, or its URL is mistyped: the host is on all the same."""
    provider = bed.open()
    machine, other = provider.launch(spec_for(bed, provider, 2))
    settings = bed.settings()
    wrong = {**settings.hosts, machine.node: f"{bed.bmcs.url}/none"}
    moved = open_provider(replace(settings, hosts=wrong), CLUSTER)
    with pytest.raises(ProviderError, match="HTTP404") as told:
        moved.terminate([machine.id, other.id])
    assert not isinstance(told.value, InstanceNotFound), "which counts as ended"
    assert states(moved)[machine.node] in STANDING
    alone = open_provider(replace(settings, hosts={machine.node: wrong[machine.node]}), CLUSTER)
    with pytest.raises(ProviderError, match="HTTP404") as told:
        alone.terminate([machine.id])
    assert not isinstance(told.value, InstanceNotFound)
    assert machine.node in bed.bmcs.on()
    assert other.node not in bed.bmcs.on()


def test_a_bmc_that_is_not_there_is_told_in_plain_words(bmcs: Bmcs, tmp_path: Path) -> None:
    hosts = {"h1": "https://127.0.0.1:1/redfish/v1/Systems/1"}
    cloud = rack(tmp_path, hosts=hosts, credentials_file=str(RedfishBed(bmcs, tmp_path).login))
    with pytest.raises(TransientError) as told, redfish_of(cloud)._system("h1"):
        pass
    words = "NotConnected: h1: 127.0.0.1:1 cannot be reached: Connection refused"
    assert told.value.refusal == words
