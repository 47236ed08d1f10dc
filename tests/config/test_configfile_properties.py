"""Properties of the configuration file: any valid configuration survives the way out and in."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.base.units import format_duration, format_size, parse_duration, parse_size
from slurm_elastic.config import Cluster, Config, PoolSettings, SlurmSettings, Timings, configfile
from slurm_elastic.config.clouds import CloudSettings, InstanceType
from slurm_elastic.config.document import write
from slurm_elastic.config.sections.access import Who
from slurm_elastic.model.cluster import Limits, Location, Market
from slurm_elastic.providers.aws.settings import AwsCloud
from slurm_elastic.providers.docker.settings import DockerCloud, DockerHost, DockerType
from slurm_elastic.providers.fake.settings import FakeCloud
from slurm_elastic.providers.local.settings import LocalCloud
from slurm_elastic.providers.opennebula.settings import OneTemplate, OpenNebulaCloud
from slurm_elastic.providers.openstack.settings import Flavor, OpenStackCloud

# Words that YAML readers like to take for something else are the interesting names.
NAMES = st.one_of(
    st.sampled_from(["no", "on", "y", "null", "true", "1e5", "0x1f", "010", "2026-01-01", "1.5"]),
    st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,20}", fullmatch=True),
).filter(lambda name: name.lower() not in ("default", "all"))
SECONDS = st.one_of(st.integers(61, 60_000).map(float), st.floats(61, 60_000, allow_nan=False))
PRICES = st.floats(0.01, 100, allow_nan=False)
GRES = st.dictionaries(st.sampled_from(["gpu", "gpu:a100", "fpga"]), st.integers(1, 8), max_size=2)
LIMITS = st.builds(
    Limits,
    nodes=st.none() | st.integers(1, 1000),
    dollars_per_hour=st.none() | st.floats(200, 1e6),
)
WORDS = st.lists(NAMES, max_size=3, unique=True).map(tuple)


@st.composite
def whos(draw: st.DrawFn) -> Who:
    times = sorted(draw(st.lists(SECONDS, min_size=2, max_size=2)))
    return Who(accounts=draw(WORDS), groups=draw(WORDS), default_time=times[0], max_time=times[1])


@st.composite
def timings(draw: st.DrawFn) -> Timings:
    return Timings(
        suspend_time=draw(SECONDS),
        resume_timeout=draw(SECONDS),
        max_cooldown=draw(SECONDS) + 1800,
        max_boot_failures=draw(st.integers(1, 9)),
    )


@st.composite
def types(draw: st.DrawFn) -> dict[str, InstanceType]:
    kind = st.builds(
        InstanceType,
        cpus=st.integers(8, 64),
        memory=st.integers(65_536, 10**6),
        price=PRICES,
        gres=st.just({"gpu": 8, "gpu:a100": 8, "fpga": 8}),
    )
    return draw(st.dictionaries(NAMES, kind, min_size=1, max_size=3))


@st.composite
def one_types(draw: st.DrawFn) -> dict[str, OneTemplate]:
    kind = st.builds(
        OneTemplate,
        cpus=st.integers(8, 64),
        memory=st.integers(65_536, 10**6),
        price=st.just(0.0) | PRICES,
        gres=st.just({"gpu": 8, "gpu:a100": 8, "fpga": 8}),
        template=st.integers(0, 10**6),
        resize=st.booleans(),
    )
    return draw(st.dictionaries(NAMES, kind, min_size=1, max_size=3))


@st.composite
def flavors(draw: st.DrawFn) -> dict[str, Flavor]:
    kind = st.builds(
        Flavor,
        cpus=st.integers(8, 64),
        memory=st.integers(65_536, 10**6),
        price=st.just(0.0) | PRICES,
        gres=st.just({"gpu": 8, "gpu:a100": 8, "fpga": 8}),
        flavor=st.none() | NAMES,
    )
    return draw(st.dictionaries(NAMES, kind, min_size=1, max_size=3))


@st.composite
def docker_types(draw: st.DrawFn) -> dict[str, DockerType]:
    kind = st.builds(
        DockerType,
        cpus=st.integers(8, 64),
        memory=st.integers(65_536, 10**6),
        price=st.just(0.0) | PRICES,
    )
    return draw(st.dictionaries(NAMES, kind, min_size=1, max_size=3))


@st.composite
def clouds(draw: st.DrawFn, number: int) -> CloudSettings:
    kinds = [LocalCloud, AwsCloud, OpenNebulaCloud, OpenStackCloud, DockerCloud, FakeCloud]
    kind = draw(st.sampled_from(kinds))
    name = f"cloud{number}"
    shared = {
        "name": draw(st.sampled_from([name, f"{number}e5"])),
        "limits": draw(LIMITS),
        "allow": draw(st.none() | whos()),
        "api_timeout": draw(SECONDS),
        "resume_timeout": draw(st.none() | SECONDS),
    }
    if kind is LocalCloud:
        socket = f"/run/{name}.sock"
        return LocalCloud(
            location=Location.ON_PREMISES, socket=socket, price=draw(PRICES), **shared
        )
    if kind is AwsCloud:
        zones = {
            f"us-east-1{letter}": f"subnet-{letter}"
            for letter in draw(st.sets(st.sampled_from("abc")))
        }
        return AwsCloud(
            location=Location.PUBLIC,
            region="us-east-1",
            image=draw(NAMES),
            types=draw(types()),
            subnets=zones,
            **shared,
        )
    if kind is OpenNebulaCloud:
        return OpenNebulaCloud(
            location=Location.ON_PREMISES,
            endpoint=draw(st.sampled_from(["http://one:2633/RPC2", "https://one/RPC2"])),
            types=draw(one_types()),
            auth_file=draw(st.none() | st.just("/root/one_auth")),
            pending_timeout=draw(st.floats(0.1, 0.9)),
            listing_lag=draw(st.floats(0.1, 0.9)),
            **shared,
        )
    if kind is OpenStackCloud:
        return OpenStackCloud(
            location=Location.ON_PREMISES,
            cloud=draw(NAMES),
            image=draw(NAMES),
            types=draw(flavors()),
            clouds_file=draw(st.none() | st.just("/etc/slurm-elastic/clouds.yaml")),
            networks=draw(st.sampled_from([(), ("none",), ("lan", "ib")])),
            schedule_timeout=draw(st.floats(0.1, 0.9)),
            listing_lag=draw(st.floats(0.1, 0.9)),
            **shared,
        )
    if kind is DockerCloud:
        return DockerCloud(
            location=Location.ON_PREMISES,
            hosts={"box": DockerHost(), "other": DockerHost(url="ssh://slurm@box2", cpus=128)},
            image=draw(NAMES),
            network=draw(NAMES),
            types=draw(docker_types()),
            mounts=draw(st.sampled_from([(), ("/home:/home", "/k:/etc/k:ro")])),
            capabilities=draw(st.sampled_from([(), ("SYS_PTRACE",)])),
            **shared,
        )
    location = draw(st.sampled_from(Location))
    return FakeCloud(
        location=location,
        types=draw(types()),
        stock=draw(st.none() | st.integers(0).filter(lambda n: n < 10**9)),
        **shared,
    )


@st.composite
def pools(draw: st.DrawFn, number: int, cloud: CloudSettings) -> PoolSettings:
    count = draw(st.integers(1, 20))
    names = () if isinstance(cloud, LocalCloud) else tuple(cloud.types)
    on_premises = cloud.location is Location.ON_PREMISES
    markets = [Market.ON_DEMAND] if on_premises else [Market.SPOT, Market.ON_DEMAND]
    return PoolSettings(
        name=f"pool{number}",
        cloud=cloud.name,
        nodes=draw(st.sampled_from([f"p{number}n[1-{count}]", f"p{number}n[001-{count:03}]"])),
        cpus=draw(st.integers(1, 8)),
        memory=draw(st.integers(257, 65_536)),
        gres={} if isinstance(cloud, DockerCloud) else draw(GRES),
        features=draw(WORDS),
        instance_types=names,
        markets=tuple(draw(st.permutations(markets))),
        max_price=draw(st.none() | st.floats(101, 1000)),
        max_nodes=draw(st.none() | st.integers(1, count)),
        max_age=draw(st.none() | st.floats(70_000, 10**7)),
        slurmd_port=10_000 + 100 * number,
    )


@st.composite
def configs(draw: st.DrawFn) -> Config:
    some = tuple(draw(clouds(i)) for i in range(draw(st.integers(1, 3))))
    return Config(
        cluster=Cluster(name=draw(st.sampled_from(["demo", "no", "1e5", "007"]))),
        clouds=some,
        pools=tuple(draw(pools(i, cloud)) for i, cloud in enumerate(some)),
        state_dir=draw(st.sampled_from(["/var/lib/x", "/ä"])),
        slurm=draw(st.builds(SlurmSettings, command_timeout=SECONDS)),
        allow=draw(st.just(Who()) | whos()),
        limits=draw(LIMITS),
        timings=draw(timings()),
        ranking=tuple(draw(st.permutations(["location", "market", "price", "waste"]))),
    )


@given(configs())
def test_dump_and_parse_are_inverse(config: Config) -> None:
    assert _accepted(config) == config


def _accepted(config: Config) -> Config | None:
    """The config after the way out and in; itself if only its own times contradict each other."""
    try:
        return configfile.parse(configfile.dump(config), "x")
    except ConfigError as error:
        if all("default_time" in problem for problem in error.problems):
            return config
        raise


@given(st.text(max_size=200))
def test_any_text_is_a_config_or_a_config_error(text: str) -> None:
    try:
        configfile.parse(text, "x")
    except ConfigError as error:
        told = error.problems
    else:
        return
    assert told
    assert all(problem.startswith("x") for problem in told)


LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
TREES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "name",
                    "provider",
                    "clouds",
                    "nodes",
                    "types",
                    "limits",
                    "allow",
                    "cloud",
                    "max_time",
                ]
            )
            | st.text(max_size=5),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)
SECTIONS = [
    "cluster",
    "clouds",
    "pools",
    "allow",
    "limits",
    "timings",
    "slurm",
    "ranking",
    "state_dir",
]


@given(st.dictionaries(st.sampled_from(SECTIONS), TREES))
def test_any_tree_is_a_config_or_a_config_error(tree: dict[str, object]) -> None:
    """Whatever stands where: sentences, never another exception."""
    try:
        configfile.parse(write(tree), "x")
    except ConfigError as error:
        told = error.problems
    else:
        return
    assert told


@given(st.integers(1, 10**9))
def test_durations_and_sizes_read_back(number: int) -> None:
    assert parse_duration(str(format_duration(float(number)))) == number
    assert parse_size(str(format_size(number))) == number


@given(st.integers(0, 400), st.integers(0, 23), st.integers(0, 59), st.integers(0, 59))
def test_slurms_own_durations(days: int, hours: int, minutes: int, seconds: int) -> None:
    total = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    assert parse_duration(f"{days}-{hours:02}:{minutes:02}:{seconds:02}") == total
    assert parse_duration(f"{days * 24 + hours}:{minutes:02}:{seconds:02}") == total
    assert parse_duration(f"{days}-{hours}") == (days * 24 + hours) * 3600
