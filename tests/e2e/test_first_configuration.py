"""A site's first day with a cloud: init, conf install, try, a plain sbatch that bursts, and out again."""

from __future__ import annotations

import sys
from collections.abc import Callable

import boto3
import pytest
from patience import patience

from slurm_elastic.config import blocked_clouds, configfile
from slurm_elastic.config.catalogue import kept, path_of
from slurm_elastic.policies.launch.trial import TrialStep
from slurm_elastic.sandbox.cluster import Sandbox
from tests.e2e.world import PATIENCE, back_to_zero, machines

pytestmark = pytest.mark.e2e
REGION = "us-east-1"
NODES = 8
"""As many as init gives a pool; the sandbox keeps ports for them."""
RESTART = """
import sys
from pathlib import Path
from slurm_elastic.sandbox.cluster import Sandbox
site = Sandbox.attach(Path(sys.argv[1]))
site.slurmctld_stop()
site.slurmctld_start()
"""

PATIENT = """
import sys
from slurm_elastic.cli.main import main
from slurm_elastic.providers.aws import found
found.TIMEOUT_S = float(sys.argv.pop(1))
sys.exit(main())
"""
"""Our command; a busy machine's emulated cloud may take long to tell init of its thousand types."""


@pytest.fixture(scope="module")
def site(sandbox: Callable[..., Sandbox]) -> Sandbox:
    """A site with one node, credentials for an EC2 that has an image of its own, and no slurm-elastic."""
    made = sandbox(
        bare=True, static_nodes=1, drop=("onprem",),
        elastic={"pools": [{"name": "pub", "cloud": "aws", "nodes": f"pub[1-{NODES}]"}]},
    )  # fmt: skip
    api = boto3.client("ec2", region_name=REGION, endpoint_url=endpoint(made))
    api.register_image(Name="slurm-22.05", RootDeviceName="/dev/sda1")
    made.ec2.price("*", "*", 0.02)
    (made.work / "restart.py").write_text(RESTART)
    return made


def endpoint(site: Sandbox) -> str:
    return f"http://127.0.0.1:{site.layout.read().ports.ec2}"


def ours(site: Sandbox, *words: str) -> str:
    """A command of ours, as root at the head types it; all that it says."""
    settings = (f"AWS_ENDPOINT_URL={endpoint(site)}", f"AWS_DEFAULT_REGION={REGION}")
    program = (sys.executable, "-c", PATIENT, str(patience(60)))
    done = site.run(["env", *settings, *program, *words], check=False, timeout=600)
    assert done.returncode == 0, f"{words}: exit {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


def restart(site: Sandbox) -> tuple[str, str]:
    return "--restart", f"{sys.executable} {site.work}/restart.py {site.layout.dir}"


def test_from_nothing_to_a_burst_and_out_again(site: Sandbox) -> None:
    before = site.layout.slurm_conf.read_bytes()
    configured_by_init(site)
    opened_by_a_person(site)

    ours(site, "conf", "install", *restart(site))
    site.daemon_start()
    site.wait_for(lambda: _knows_types(site), PATIENCE, "slurm-elasticd has read the catalogue")
    assert "our nodes: all 8 are there" in ours(site, "doctor")
    tried(site)
    bursts(site)

    back_to_zero(site)
    site.daemon_stop()
    ours(site, "conf", "uninstall", *restart(site))
    assert site.layout.slurm_conf.read_bytes() == before


def configured_by_init(site: Sandbox) -> None:
    """It finds the cloud, checks itself with all three commands, and leaves the cloud shut."""
    said = ours(site, "init", "--yes")
    assert said.index("conf show:") < said.index("conf check:") < said.index("doctor --quick:")
    assert "slurmctld: Slurm" in said
    config = configfile.load(site.layout.config)
    assert [cloud.name for cloud in config.clouds] == ["aws"], said
    assert list(blocked_clouds(config)) == ["aws"]
    assert len(config.pools) == 1


def opened_by_a_person(site: Sandbox) -> None:
    """Who may spend how much, as init's comments say; the rest is this host's: places, ports, a hurry."""
    root, ports = site.layout.dir, site.layout.read().ports
    text = site.layout.config.read_text()
    for old, new in (
        ("\nallow: {", "\nallow: {default_time: 10m, "),
        ("# allow: {groups: [physics]}", "allow: {groups: [nogroup, root]}"),
        ("# limits: {dollars_per_hour: 5}", "limits: {dollars_per_hour: 5}"),
        ("slurm: {", f"state_dir: {root}/state\nslurm: {{programs_dir: {root}/programs, "),
        ("    nodes: aws-", f"    slurmd_port: {ports.nodes + site.spec.static_nodes}\n    nodes: aws-"),
    ):  # fmt: skip
        assert text.count(old) == 1, text
        text = text.replace(old, new)
    text += f"users: {{socket: {root}/door/read.sock}}\n"
    text += "timings: {suspend_time: 8, suspend_timeout: 5, resume_timeout: 180, reconcile_interval: 2}\n"
    site.layout.config.write_text(text)
    assert "not in use" not in ours(site, "conf", "show")


def _knows_types(site: Sandbox) -> bool:
    """From then on nobody asks the emulated cloud for its thousand types, for which a busy machine
    takes longer than a command waits.
    """
    config = configfile.read(site.layout.config)
    return kept(path_of(config, config.clouds[0])) is not None


def tried(site: Sandbox) -> None:
    said = ours(site, "try", "aws", "--yes", "--user", "nobody")
    assert all(f" {step} " in said for step in TrialStep), said
    site.wait_for(lambda: not machines(site), PATIENCE, "the machine is ended")


def bursts(site: Sandbox) -> None:
    """The site's own node first; when it is taken, the same command goes to the cloud."""
    own = site.submit("sleep 600", "--exclusive")
    site.wait_job(own, "RUNNING")
    job = site.wait_job(site.submit("hostname", "--exclusive"))
    assert job["NodeList"].startswith("aws-")
    assert site.job(own)["NodeList"] == "st1"
    site.run(["scancel", str(own)])
