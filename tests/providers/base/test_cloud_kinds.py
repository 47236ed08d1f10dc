"""A cloud is one folder and no line elsewhere: ``fake``, taken out of the package and put back as a
package of somebody else's, works everywhere.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_elastic import providers
from slurm_elastic.base.errors import AuthError, ConfigError
from slurm_elastic.base.hostlist import expand
from slurm_elastic.config import Config, blocked_clouds, cloud_kinds, configfile, domain_pools
from slurm_elastic.config.cloud_kinds import CloudTable, table
from slurm_elastic.model.finding import FindingLevel
from slurm_elastic.providers import open_provider, open_providers
from slurm_elastic.simulate import site as scenarios
from slurm_elastic.simulate.availability import HistorySpan
from slurm_elastic.watch.doctor import clouds as doctor
from tests.outside import announce, imported_from, site_text

PACKAGE = Path(providers.__file__).parent
ROOT = Path(__file__).parents[3]
SITE = site_text()
WITHOUT_FAKE = """
from slurm_elastic.config import cloud_kinds

_all = cloud_kinds._own
cloud_kinds._own = lambda: {k: v for k, v in _all().items() if k != "fake"}
"""


def put_outside(folder: Path, name: str = "fake", package: str = "outside_fake") -> None:
    """The folder of the cloud in memory as a package with an entry point."""
    inside = "slurm_elastic.providers.fake"
    for file in (PACKAGE / "fake").glob("*.py"):
        target = folder / package / file.name
        target.parent.mkdir(exist_ok=True)
        target.write_text(file.read_text().replace(inside, package))
    announce(folder, cloud_kinds.GROUP, name, f"{package}:CLOUD")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with imported_from(tmp_path, monkeypatch, table.cache_clear) as folder:
        yield folder


@pytest.fixture
def outside(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """``fake`` is no folder of ours any more."""
    own = {k: v for k, v in cloud_kinds._own().items() if k != "fake"}
    monkeypatch.setattr(cloud_kinds, "_own", lambda: own)
    put_outside(folder)
    return folder


def site() -> Config:
    return configfile.parse(SITE, "site.yaml")


@pytest.mark.usefixtures("outside")
def test_its_settings_are_read_checked_and_written() -> None:
    config = site()
    (cloud,) = config.clouds
    assert type(cloud).__module__ == "outside_fake.settings"
    assert configfile.parse(configfile.dump(config), "again.yaml") == config
    with pytest.raises(ConfigError) as caught:
        configfile.parse(SITE.replace("types:", "tpyes:"), "site.yaml")
    assert "clouds[0] (rehearsal).tpyes: found unknown key 'tpyes'" in str(caught.value)
    assert "did you mean types?" in str(caught.value)


@pytest.mark.usefixtures("outside")
def test_what_its_pools_ask_for_is_checked() -> None:
    with pytest.raises(ConfigError, match="found 'small' with 2 cpus, expected at least the 9"):
        configfile.parse(
            SITE.replace("cpus: 2, memory: 4G, inst", "cpus: 9, memory: 4G, inst"), "s"
        )
    with pytest.raises(ConfigError, match="a zone of cloud rehearsal: one of zone-1"):
        configfile.parse(SITE.replace("[small]", "[small], zones: [b]"), "s")


@pytest.mark.usefixtures("outside")
def test_it_has_offers_and_doctor_looks_at_it() -> None:
    config = site()
    pools = domain_pools(config, expand)
    provider = open_provider(config.clouds[0], config.cluster, config)
    assert [offer.price for offer in provider.offers(pools[0])] == [0.1]
    findings = doctor.examine(config, config.clouds[0], pools)
    assert findings
    assert all(finding.level is FindingLevel.OK for finding in findings)


@pytest.mark.usefixtures("outside")
def test_it_is_simulated() -> None:
    models, _ = scenarios.pools_of(site(), scenarios.World(span=HistorySpan(0, 0, 86400)))
    assert [(m.name, m.machines, m.procs, m.price) for m in models] == [("p", 4, 2, 0.1)]


def test_it_keeps_the_contract(tmp_path: Path) -> None:
    """The tests of the cloud in memory, on the one outside."""
    put_outside(tmp_path)
    text = (ROOT / "tests/providers/fake/test_provider.py").read_text()
    text = text.replace("slurm_elastic.providers.fake", "outside_fake")
    (tmp_path / "test_outside.py").write_text(text)
    (tmp_path / "conftest.py").write_text(WITHOUT_FAKE)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    paths = os.pathsep.join(str(p) for p in (tmp_path, ROOT, ROOT / "tests"))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True, text=True, check=False, timeout=500,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert " passed" in done.stdout


# what others may get wrong


def complaint(text: str = SITE) -> str:
    with pytest.raises(ConfigError) as caught:
        configfile.parse(text, "site.yaml")
    (sentence,) = caught.value.problems
    return sentence


def test_a_name_that_the_package_has_already_is_a_mistake(folder: Path) -> None:
    put_outside(folder)
    assert complaint() == (
        "site.yaml:5: clouds[0] (rehearsal).provider: found 'fake', which several packages have: "
        "slurm_elastic.providers.fake:CLOUD, outside_fake:CLOUD, expected a provider that can be used"
    )


@pytest.mark.usefixtures("outside")
def test_one_for_another_interface_is_told_with_what_to_do(folder: Path) -> None:
    file = folder / "outside_fake" / "__init__.py"
    file.write_text(file.read_text().replace("CLOUD = CloudKind(", "CLOUD = CloudKind(api=99, "))
    assert "made for interface 99 of providers, this release has 1" in complaint()


@pytest.mark.usefixtures("outside")
def test_one_that_cannot_be_imported_is_told(folder: Path) -> None:
    (folder / "outside_fake" / "__init__.py").write_text("import a_module_that_is_not_there\n")
    assert "outside_fake:CLOUD cannot be imported: ModuleNotFoundError" in complaint()


@pytest.mark.usefixtures("outside")
def test_one_that_is_something_else_is_told(folder: Path) -> None:
    (folder / "outside_fake" / "__init__.py").write_text("CLOUD = 7\n")
    assert "outside_fake:CLOUD is no CloudKind" in complaint()


def test_one_whose_settings_have_another_name_is_told(folder: Path) -> None:
    put_outside(folder, name="mist", package="outside_mist")
    text = SITE.replace("provider: fake", "provider: mist")
    assert "outside_mist:CLOUD calls itself fake" in complaint(text)


# the other clouds go on


BESIDE = """
  - name: good
    provider: fake
    location: on-premises
    types: {small: {cpus: 2, memory: 4G, price: 0.1}}
pools:
  - {name: q, cloud: good, nodes: "q[1-4]", cpus: 2, memory: 4G, instance_types: [small]}
"""
BROKEN = {
    "import": ("import a_module_that_is_not_there\n", "ModuleNotFoundError"),
    "exit": ("raise ValueError('nothing works')\n", "ValueError: nothing works"),
    "api": ("CLOUD = CloudKind(api=99, ", "made for interface 99 of providers"),
    "clash": ("", "which several packages have: outside_mist:CLOUD, outside_mist2:CLOUD"),
    "open": ("raise RuntimeError('no licence')\n", "cannot be opened: RuntimeError: no licence"),
    "open-key": ("raise KeyError('zone')\n", "cannot be opened: KeyError: 'zone'"),
    "open-codec": ("raise LookupError('zone')\n", "cannot be opened: LookupError: zone"),
}


@pytest.fixture(params=BROKEN)
def half(request: pytest.FixtureRequest, folder: Path) -> tuple[Path, str]:
    """A file with a cloud of somebody's that cannot be used, beside one that can; and why."""
    put_outside(folder, name="mist", package="outside_mist")
    settings = folder / "outside_mist" / "settings.py"
    settings.write_text(settings.read_text().replace('tag="fake"', 'tag="mist"'))
    code, why = BROKEN[request.param]
    file = folder / "outside_mist" / "__init__.py"
    match request.param:
        case "import" | "exit":
            file.write_text(code)
        case "api":
            file.write_text(file.read_text().replace("CLOUD = CloudKind(", code))
        case "open" | "open-key" | "open-codec":
            file.with_name("provider.py").write_text(code)
        case "clash":
            put_outside(folder, name="mist", package="outside_mist2")
    site = folder / "site.yaml"
    site.write_text(SITE.replace("fake", "mist").replace("pools:\n", BESIDE.lstrip("\n")))
    return site, why


def test_a_kind_that_cannot_be_used_is_a_mistake_of_its_clouds_alone(
    half: tuple[Path, str], caplog: pytest.LogCaptureFixture
) -> None:
    file, why = half
    config = configfile.load(file)
    assert [(c.name, c.provider) for c in config.clouds] == [
        ("rehearsal", "mist"),
        ("good", "fake"),
    ]
    assert [(p.name, p.nodes) for p in config.pools] == [("q", "q[1-4]"), ("p", "p[1-4]")]
    opened = open_providers(config)
    assert why in caplog.text
    pools = {pool.cloud: pool for pool in domain_pools(config, expand)}
    assert [offer.price for offer in opened["good"].offers(pools["good"])] == [0.1]
    calls = (opened["rehearsal"].instances, lambda: opened["rehearsal"].terminate(["x"]))
    for call in calls:
        with pytest.raises(AuthError, match="cloud 'rehearsal': provider 'mist'") as caught:
            call()
        assert why in str(caught.value)
    findings = doctor.examine(config, config.clouds[0], [pools["rehearsal"]])
    assert [f.level for f in findings] == [FindingLevel.WRONG]
    assert why in findings[0].observed


@pytest.mark.parametrize("half", [kind for kind in BROKEN if "open" not in kind], indirect=True)
def test_nothing_is_bought_or_installed_there_and_it_is_told(half: tuple[Path, str]) -> None:
    file, why = half
    with pytest.raises(ConfigError) as caught:
        configfile.load(file, whole=True)
    assert why in str(caught.value)
    (blocked,) = blocked_clouds(configfile.load(file)).values()
    shut = str(blocked)
    assert shut.startswith("cloud rehearsal cannot be used: provider 'mist', ")
    assert why in shut


def test_where_no_cloud_can_be_opened_nothing_is_served(folder: Path) -> None:
    put_outside(folder)
    config = configfile.parse(SITE, "site.yaml", whole=False)
    with pytest.raises(ConfigError, match="cloud 'rehearsal': provider 'fake', which several"):
        open_providers(config)


def test_nothing_is_imported_that_no_configuration_names(folder: Path) -> None:
    put_outside(folder, name="mist", package="outside_mist")
    (folder / "outside_mist" / "__init__.py").write_text("raise SystemExit(3)\n")
    assert site().clouds[0].provider == "fake"
    assert "mist" in table().names()


def test_no_sdk_is_imported_to_read_a_configuration() -> None:
    code = (
        "import sys; from slurm_elastic.config.cloud_kinds import table\n"
        "[table().kind(n) for n in table().names()]\n"
        "print([m for m in ('boto3', 'openstack', 'pyone', 'docker') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_a_table_knows_no_other_names() -> None:
    known = CloudTable({"fake": "slurm_elastic.providers.fake:CLOUD"}, {})
    assert known.names() == ("fake",)
    with pytest.raises(KeyError):
        known.kind("mist")
