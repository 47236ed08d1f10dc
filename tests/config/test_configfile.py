"""The configuration file: what is accepted, every complaint word for word, and the way back."""

from __future__ import annotations

import json
import os
import re
import stat
import threading
from pathlib import Path

import pytest
import yaml
from msgspec.structs import replace

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.base.hostlist import expand
from slurm_elastic.config import Config, blocked_clouds, configfile, domain_pools
from slurm_elastic.config.reference import keys
from slurm_elastic.config.sections.access import Who
from slurm_elastic.config.sections.joining import Join
from slurm_elastic.model.cluster import Limits, Location, Market
from slurm_elastic.providers.aws.settings import AwsCloud
from slurm_elastic.providers.local.settings import LocalCloud
from slurm_elastic.providers.opennebula.settings import OpenNebulaCloud

DATA = Path(__file__).parents[1] / "data" / "config"
ROOT = Path(__file__).parents[2]
GOOD = (DATA / "good.yaml").read_text()
WRONG = yaml.safe_load((DATA / "wrong.yaml").read_text())
EXAMPLE = ROOT / "etc" / "slurm-elastic.yaml"
UUID = "7f3b4c1e-9d2a-4e5b-8c6f-0a1b2c3d4e5f"
OTHER_UUID = "00000000-9d2a-4e5b-8c6f-0a1b2c3d4e5f"


def parse(text: str) -> Config:
    return configfile.parse(text, "site.yaml")


def problems(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse(text)
    return list(caught.value.problems)


def good(old: str = "", new: str = "") -> Config:
    assert old in GOOD
    return parse(GOOD.replace(old, new, 1))


@pytest.mark.parametrize("wrong", WRONG, ids=[case["case"] for case in WRONG])
def test_each_mistake_has_its_exact_message(wrong: dict[str, str]) -> None:
    old = wrong.get("instead of", GOOD)
    assert old in GOOD
    assert problems(GOOD.replace(old, wrong["stands"], 1)) == wrong["says"]


def test_the_table_of_mistakes_is_long_enough() -> None:
    assert len(WRONG) >= 40


def test_all_mistakes_of_a_file_are_told_at_once_in_its_order() -> None:
    with pytest.raises(ConfigError) as caught:
        configfile.parse((DATA / "many.yaml").read_text(), "many.yaml")
    assert str(caught.value) + "\n" == (DATA / "many.txt").read_text()


def test_values_of_a_good_file() -> None:
    config = good()
    assert [cloud.name for cloud in config.clouds] == ["onprem", "aws"]
    assert isinstance(config.clouds[0], LocalCloud)
    aws = config.cloud("aws")
    assert isinstance(aws, AwsCloud)
    assert aws.types["c5.large"].memory == 4096
    assert config.pools[1].markets == (Market.SPOT, Market.ON_DEMAND)
    assert config.allow.max_time == 86400
    assert config.limits == Limits(nodes=10, dollars_per_hour=5.0)
    assert isinstance(config.limits.dollars_per_hour, float)
    assert config.timings.reconcile_interval == 30.0


def test_yaml_words_that_are_no_booleans_stay_text() -> None:
    config = good("accounts: [physics]", "accounts: [no, on, y, 0x10, 2026-01-01]")
    assert config.allow.accounts == ("no", "on", "y", "0x10", "2026-01-01")


def test_anchors_and_merge_keys_work() -> None:
    text = GOOD.replace("m5.large: {cpus", "m5.large: &big {cpus").replace(
        "g4.large: {cpus: 4, memory: 16G, price: 0.5, gres: {gpu: 1}}",
        "g4.large: {<<: *big, cpus: 4, memory: 16G, gres: {gpu: 1}}",
    )
    aws = parse(text).cloud("aws")
    assert isinstance(aws, AwsCloud)
    assert (aws.types["g4.large"].price, aws.types["g4.large"].cpus) == (0.096, 4)


def test_optional_values_may_be_empty() -> None:
    assert good("capacity: 4", "capacity:").cloud("onprem").capacity is None  # type: ignore[union-attr]


def test_a_cloud_without_pools_is_no_mistake() -> None:
    text = GOOD[: GOOD.index("  - name: pub")]
    assert [p.cloud for p in parse(text).pools] == ["onprem"]


@pytest.mark.parametrize("name", ["slurm-elastic.yaml"])
def test_the_shipped_example_is_valid_and_may_burst(name: str) -> None:
    config = configfile.load(ROOT / "etc" / name)
    assert {cloud.location for cloud in config.clouds} == set(Location)
    assert any({Market.SPOT, Market.ON_DEMAND} <= {*pool.markets} for pool in config.pools)
    assert blocked_clouds(config) == {}
    assert config.join == Join()  # no head but the site's own


def test_the_optional_keys_of_the_example_mean_what_they_mean_without(tmp_path: Path) -> None:
    """As an admin would: whole sections, and single keys of the others, without the ``#``."""
    text = EXAMPLE.read_text()
    for section in ("policies", "checkpoint"):
        block = re.search(rf"^# {section}:\n(#.*\n)+", text, re.MULTILINE)
        assert block is not None
        text = text.replace(block[0], re.sub("^# ?", "", block[0], flags=re.MULTILINE))
    path = tmp_path / "slurm-elastic.yaml"
    path.write_text(re.sub(r"^( +)# (\w+: )", r"\1\2", text, flags=re.MULTILINE))
    shipped, config = configfile.load(EXAMPLE), configfile.load(path)
    assert config.checkpoint == shipped.checkpoint
    assert config.clouds == shipped.clouds
    assert config.timings == shipped.timings
    assert (config.policies.release, config.policies.machine_order) == (None, None)


@pytest.mark.parametrize(
    "files",
    [
        ("etc/slurm-elastic.yaml",),
        (
            "docs/configuration.md",
            "docs/configuration-clouds.md",
            "docs/network.md",
            "docs/libvirt.md",
        ),
    ],
    ids=["file", "pages"],
)
def test_every_key_is_described(files: tuple[str, ...]) -> None:
    text = "".join((ROOT / file).read_text() for file in files)
    names = {name for key in keys() for name in key.place.split(".") if "(" not in name}
    assert [
        name for name in sorted(names) if f"{name}:" not in text and f"`{name}`" not in text
    ] == []


# Files


def refusal(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        configfile.load(path)
    assert len(caught.value.problems) == 1
    return str(caught.value)


def test_files_that_are_no_yaml_files(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    assert refusal(path) == f"{path}: cannot be read: No such file or directory"
    assert refusal(tmp_path) == f"{tmp_path}: found a directory, expected a YAML file"
    path.write_bytes(b"cluster: \xff\xfe")
    assert refusal(path) == f"{path}: found byte 0xff at offset 9, expected UTF-8 text"
    path.write_bytes(b"#" * (configfile.MAX_BYTES + 1))
    assert refusal(path) == f"{path}: found more than 4194304 bytes, expected a YAML file"
    path.write_bytes(b"\xef\xbb\xbf")
    assert refusal(path) == f"{path}: found an empty file, expected cluster, clouds and pools"
    (tmp_path / "file" / "x.yaml").parent.write_text("")
    below = tmp_path / "file" / "x.yaml"
    assert refusal(below) == f"{below}: cannot be read: Not a directory"


def test_a_file_without_permission(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(GOOD)
    path.chmod(0)
    own = os.geteuid()
    if own == 0:  # root may read anything
        os.seteuid(65534)
    try:
        said = refusal(path)
    finally:
        os.seteuid(own)
    assert said == f"{path}: cannot be read: Permission denied"


def test_deep_nesting_is_refused() -> None:
    assert problems("[" * 3000) == [
        "site.yaml: found YAML nested too deeply, expected a few levels"
    ]


# The cluster's UUID


def test_the_uuid_file_fills_the_uuid(tmp_path: Path) -> None:
    path = tmp_path / "slurm-elastic.yaml"
    path.write_text(GOOD)
    assert configfile.load(path).cluster.uuid is None
    (tmp_path / "cluster-uuid").write_text(f"{UUID}\n")
    assert configfile.load(path).cluster.uuid == UUID


def test_a_uuid_in_the_yaml_needs_no_file_and_must_not_differ_from_it(tmp_path: Path) -> None:
    path = tmp_path / "slurm-elastic.yaml"
    path.write_text(GOOD.replace("name: demo", f"name: demo\n  uuid: {UUID}"))
    assert configfile.load(path).cluster.uuid == UUID
    (tmp_path / "cluster-uuid").write_text(UUID)
    assert configfile.load(path).cluster.uuid == UUID
    (tmp_path / "cluster-uuid").write_text(OTHER_UUID)
    assert refusal(path) == (
        f"{path}: cluster.uuid: found '{UUID}', expected '{OTHER_UUID}' as in"
        f" {tmp_path}/cluster-uuid: remove one of them"
    )


@pytest.mark.parametrize("content", [b"", b"demo\n", UUID.upper().encode(), b"\xff" * 200])
def test_a_bad_uuid_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "slurm-elastic.yaml"
    path.write_text(GOOD)
    (tmp_path / "cluster-uuid").write_bytes(content)
    said = refusal(path)
    assert said.startswith(f"{tmp_path}/cluster-uuid: found '")
    assert said.endswith("', expected a UUID in lower case, 8-4-4-4-12 hexadecimal digits")
    with pytest.raises(ConfigError):
        configfile.ensure_uuid(path)
    assert (tmp_path / "cluster-uuid").read_bytes() == content


def test_the_uuid_is_made_once_and_readable_for_all(tmp_path: Path) -> None:
    path = tmp_path / "slurm-elastic.yaml"
    path.write_text(GOOD)
    before = os.umask(0o077)
    try:
        made = configfile.ensure_uuid(path)
    finally:
        os.umask(before)
    assert configfile.ensure_uuid(path) == made == configfile.load(path).cluster.uuid
    mode = (tmp_path / "cluster-uuid").stat().st_mode
    assert stat.S_IMODE(mode) == 0o644
    assert sorted(p.name for p in tmp_path.iterdir()) == ["cluster-uuid", "slurm-elastic.yaml"]


def test_many_who_make_the_uuid_at_once_agree(tmp_path: Path) -> None:
    made: list[str] = []
    start = threading.Barrier(8)

    def make() -> None:
        start.wait()
        made.append(configfile.ensure_uuid(tmp_path / "slurm-elastic.yaml"))

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 8
    assert len(set(made)) == 1
    assert [p.name for p in tmp_path.iterdir()] == ["cluster-uuid"]


def test_a_uuid_that_cannot_be_written_is_a_clear_refusal(tmp_path: Path) -> None:
    path = tmp_path / "gone" / "slurm-elastic.yaml"
    with pytest.raises(ConfigError) as caught:
        configfile.ensure_uuid(path)
    assert str(caught.value) == (
        f"{path.parent}/cluster-uuid: cannot be written: No such file or directory"
    )


# Who may spend


def sentences_of_blocked(config: Config) -> dict[str, str]:
    return {name: str(cause) for name, cause in blocked_clouds(config).items()}


def test_a_public_cloud_is_shut_until_somebody_is_allowed_and_a_cap_is_set() -> None:
    nobody = "nobody is allowed to use it (set allow.accounts, allow.groups or allow.qos)"
    no_cap = "it has no spending cap (set limits.dollars_per_hour)"
    assert sentences_of_blocked(good()) == {}
    assert sentences_of_blocked(good("  accounts: [physics]\n", "")) == {
        "aws": f"cloud aws costs money: {nobody}"
    }
    assert sentences_of_blocked(good("  dollars_per_hour: 5\n", "")) == {
        "aws": f"cloud aws costs money: {no_cap}"
    }
    both = replace(good(), allow=Who(), limits=Limits())
    assert sentences_of_blocked(both) == {"aws": f"cloud aws costs money: {nobody} and {no_cap}"}


def test_a_cloud_may_have_its_own_allow_list_and_cap() -> None:
    text = GOOD.replace("  accounts: [physics]\n", "").replace("  dollars_per_hour: 5\n", "")
    own = "image: ami-1\n    allow: {qos: [burst]}\n    limits: {dollars_per_hour: 3}"
    assert blocked_clouds(parse(text.replace("image: ami-1", own))) == {}


def test_on_premises_machines_with_a_price_need_no_consent() -> None:
    config = replace(good("capacity: 4", "price: 0.02"), allow=Who(), limits=Limits())
    assert list(blocked_clouds(config)) == ["aws"]


def test_a_clouds_own_times_leave_the_allow_list_of_all() -> None:
    config = good("image: ami-1", "image: ami-1\n    allow: {max_time: 4h}")
    who = config.who_of(config.cloud("aws"))
    assert who == Who(accounts=("physics",), max_time=14400.0, default_time=3600.0)
    assert config.who_of(config.cloud("onprem")) == config.allow


def test_a_clouds_own_allow_list_replaces_that_of_all() -> None:
    config = good("image: ami-1", "image: ami-1\n    allow: {qos: [burst]}")
    who = config.who_of(config.cloud("aws"))
    assert (who.accounts, who.qos, who.max_time) == ((), ("burst",), 86400.0)


# Values with a default of their own


def test_a_clouds_own_timings_come_before_those_of_all() -> None:
    timings = "suspend_time: 5m\n    resume_timeout: 900s\n    suspend_timeout: 90s"
    config = good("image: ami-1", f"image: ami-1\n    {timings}")
    onprem, aws = config.cloud("onprem"), config.cloud("aws")
    general = config.timings
    assert config.suspend_time(onprem) == general.suspend_time
    assert config.resume_timeout(onprem) == general.resume_timeout
    assert config.suspend_timeout(onprem) == general.suspend_timeout
    assert config.suspend_time(aws) == 300.0
    assert config.resume_timeout(aws) == config.longest_resume_timeout == 900.0
    assert config.suspend_timeout(aws) == 90.0
    assert good().longest_resume_timeout == general.resume_timeout


def test_machines_of_a_public_cloud_have_a_maximum_age_unless_a_pool_says_another() -> None:
    def ages(config: Config) -> dict[str, float | None]:
        return {pool.cloud: pool.max_age for pool in domain_pools(config, expand)}

    assert ages(good()) == {"onprem": None, "aws": 7 * 86400.0}
    every = tuple(replace(pool, max_age=86400.0) for pool in good().pools)
    assert ages(replace(good(), pools=every)) == {"onprem": 86400.0, "aws": 86400.0}


# Out and in again


@pytest.mark.parametrize("path", [DATA / "good.yaml", EXAMPLE], ids=["good", "example"])
def test_the_effective_config_reads_back_the_same(path: Path) -> None:
    config = configfile.load(path)
    text = configfile.dump(config)
    assert parse(text) == config
    assert configfile.dump(parse(text)) == text


NEBULA = """
  - name: nebula
    provider: opennebula
    location: on-premises
    endpoint: http://one:2633/RPC2
    types: {small: {template: 12, cpus: 2, memory: 4G}}
    pending_timeout: 5s
"""


@pytest.mark.parametrize(
    ("timeout", "lag"), [("7m", 60.0), ("2m", 54.0), ("1m", 25.0), ("20s", 5.0)]
)
def test_a_short_resume_timeout_leaves_less_time_for_lists(timeout: str, lag: float) -> None:
    """It was valid before there was such a key, and what is shown can be read again."""
    timings = f"timings:\n  resume_timeout: {timeout}\n"
    text = GOOD.replace("timings:\n", timings, 1)
    config = parse(text.replace("\n  - name: aws", f"{NEBULA}  - name: aws", 1))
    cloud = config.cloud("nebula")
    assert isinstance(cloud, OpenNebulaCloud)
    assert cloud.listing_lag == lag
    assert parse(configfile.dump(config)) == config


def test_the_effective_config_shows_defaults_and_readable_durations() -> None:
    shown = yaml.safe_load(configfile.dump(good()))
    assert shown["timings"]["quota_cooldown"] == "30m"
    assert shown["allow"]["max_time"] == "1d"
    assert shown["pools"][0]["memory"] == "4G"
    assert shown["slurm"]["user"] == "slurm"
    assert list(shown["clouds"][0])[:2] == ["provider", "name"]


@pytest.mark.parametrize(
    "place",
    [
        "scratch", "/", "//", "/etc", "/etc/munge", "/var/lib", "/var/lib/slurm", "/var/spool/cron",
        "/a/../etc", "/proc/1", "//home", "/./home/", "/home/*", "/home/alice", "/scratch/[ab]",
        "/usr/local", "/run/user", "/dev", "~/scratch",
    ],
)  # fmt: skip
def test_root_empties_no_directory_that_a_machine_needs(place: str) -> None:
    found = problems(f"{GOOD}\njoin: {{wipe: [/scratch, {json.dumps(place)}]}}\n")
    assert any("a directory for jobs' files, such as /scratch or /tmp" in one for one in found)


def test_a_check_that_is_no_command_is_refused() -> None:
    """The agent splits it on the machine, where nobody reads the error."""
    (found,) = problems(f'{GOOD}\njoin: {{check: "sh -c \'nvidia-smi"}}\n')
    assert "join.check: found" in found
    assert "expected a command" in found


@pytest.mark.parametrize(
    "place", ["/scratch", "//scratch/", "/tmp", "/var/tmp", "/dev/shm", "/mnt/nvme", "/srv/scratch"]
)
def test_directories_for_jobs_files_may_be_emptied(place: str) -> None:
    load_text = f"{GOOD}\njoin: {{wipe: [{json.dumps(place)}]}}\n"
    assert parse(load_text).join.wipe == (place,)
