"""The key ``join.mounts``: what makes no sense is told with its place."""

from __future__ import annotations

import pytest

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.config import configfile
from slurm_elastic.config.mounting import mounts_of
from slurm_elastic.config.sections.access import Share
from tests.config.test_network import GOOD, SITE

DIRECT = "null"


def site(mounts: str, network: str = DIRECT, head: str = "10.1.2.3", more: str = "") -> str:
    return SITE.format(network=network, head=head, nodes=4) + f"  mounts: {mounts}\n{more}"


NFS = "{endpoint: 'vpn.example.org:51820', routes: [10.1.2.0/24], head_ports: [6817, 2049]}"
HOME = "[{path: /home, from: 'head:/home'}]"


@pytest.mark.parametrize(("network", "server"), [(DIRECT, "10.1.2.3"), (NFS, "10.99.0.1")])
def test_the_head_is_mounted_by_the_address_at_which_machines_reach_it(
    network: str, server: str
) -> None:
    config = configfile.parse(site(HOME, network), "site.yaml")
    (mount,) = mounts_of(config, config.cloud("aws"))
    assert mount.source == f"{server}:/home"
    assert mount.options == "hard,timeo=150,nosuid,nodev,_netdev"
    assert mounts_of(config, config.cloud("op")) == [], "no user data tells machines on the head"


def test_a_directory_is_mounted_before_those_below_it() -> None:
    mounts = (
        "[{path: /data/fast, from: 'b.example.org:/fast', options: [ro], required: false},"
        " {path: /data, from: '[fd00::1]:/data', clouds: [aws]}]"
    )
    config = configfile.parse(site(mounts), "site.yaml")
    first, second = mounts_of(config, config.cloud("aws"))
    assert (first.path, first.source, first.required) == ("/data", "[fd00::1]:/data", True)
    assert (second.path, second.source, second.required) == (
        "/data/fast", "b.example.org:/fast", False,
    )  # fmt: skip
    assert second.options.endswith(",_netdev,ro")


@pytest.mark.parametrize(
    ("mounts", "why"),
    [
        ("[{path: home, from: 'head:/home'}]", "mounts[0].path: found 'home', no absolute path"),
        ("[{path: /a/../etc, from: 'head:/home'}]", "no absolute path"),
        ("[{path: '/my home', from: 'head:/home'}]", "no absolute path"),
        ("[{path: /, from: 'head:/home'}]", "found '/', the whole machine"),
        ("[{path: /etc/slurm, from: 'head:/home'}]", "'/etc/slurm', a directory that the machine"),
        ("[{path: /var/spool/slurmd, from: 'head:/home'}]", "a directory that the machine itself"),
        ("[{path: /home, from: /home}]", "mounts[0].from: found '/home', expected HOST:/DIRECTORY"),
        ("[{path: /home, from: 'head:home'}]", "expected HOST:/DIRECTORY"),
        ("[{path: /x, from: 'head:/var'}]", "'head:/var', which has /var/lib/slurm-elastic"),
        ("[{path: /x, from: 'head:/etc/slurm'}]", "'head:/etc/slurm', which has /etc/slurm"),
        (
            "[{path: /home, from: 'head:/home'}, {path: /home/, from: 'b:/home'}]",
            "mounts[1].path: found '/home/', expected another path: head:/home is mounted there",
        ),
        ("[{path: /h, from: 'head:/h', options: [soft]}]", "mounts[0].options[0]: found 'soft'"),
        ("[{path: /h, from: 'head:/h', options: [vers=3]}]", "expected NFS 4"),
        ("[{path: /h, from: 'head:/h', options: ['ro,bg']}]", "one option of mount(8)"),
        ("[{path: /h, from: 'head:/h', options: [x-systemd.automount]}]", "no unit of systemd"),
        ("[{path: /h, from: 'head:/h', clouds: [op]}]", "mounts[0].clouds[0]: found 'op'"),
    ],
)
def test_a_mount_that_makes_no_sense_is_refused_with_its_place(mounts: str, why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        configfile.parse(site(mounts), "site.yaml")
    assert why in str(caught.value)
    assert "site.yaml:" in str(caught.value)


def test_a_mount_through_the_tunnel_needs_the_heads_nfs_port_in_it() -> None:
    with pytest.raises(ConfigError, match=r"head_ports: found \[6817\], expected \[6817, 2049\]"):
        configfile.parse(site(HOME, GOOD), "site.yaml")


def test_of_two_heads_none_is_the_server() -> None:
    with pytest.raises(ConfigError, match="a server by its name: there are two heads"):
        configfile.parse(site(HOME, head="a.example.org,b.example.org"), "site.yaml")
    configfile.parse(site("[{path: /h, from: 'nfs:/h'}]", head="a.example.org,b.org"), "site.yaml")


def test_a_shared_directory_is_no_scratch() -> None:
    with pytest.raises(ConfigError, match="a directory of the machine itself, not of head:/data"):
        configfile.parse(site("[{path: /data, from: 'head:/data'}]\n  wipe: [/data/tmp]"), "s.yaml")


@pytest.mark.parametrize("mounts", [HOME, "[{path: /s, from: 'b:/s', options: [ro, soft]}]"])
def test_sound_mounts_are_accepted(mounts: str) -> None:
    configfile.parse(site(mounts), "site.yaml")


def test_mounts_without_a_head_reach_no_machine() -> None:
    with pytest.raises(ConfigError, match=r"join.mounts: found 'mounts' alone"):
        configfile.parse(site(HOME, head="null"), "site.yaml")


def test_pools_of_one_partition_share_their_nodes_in_one_way() -> None:
    """Slurm has the option for partitions alone."""
    pool = (
        "  - {name: two, cloud: aws, nodes: 'two[1-2]', cpus: 2, memory: 4G, share: user,"
        " instance_types: [c5.large]}\n"
    )
    text = site(HOME).replace("join:\n", f"{pool}join:\n")
    expected = r"pools\[2\] \(two\).share: found 'user', expected none, as pool pub"
    with pytest.raises(ConfigError, match=expected):
        configfile.parse(text, "site.yaml")
    all_alike = text.replace("name: pub, cloud: aws,", "name: pub, cloud: aws, share: user,")
    assert configfile.parse(all_alike, "site.yaml").pools[0].share is Share.USER
