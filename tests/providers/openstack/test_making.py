"""``init --make`` and ``--unmake`` on the stand-in of OpenStack."""

from __future__ import annotations

import json
import os
import pwd
import re
import stat

import pytest
import terraform_page
import yaml
from providers.openstack.making_project import Project
from providers.openstack.stand_in import PASSWORD, Kind
from providers.openstack.stand_in_network import EXTERNAL

from slurm_elastic.config.grants import GrantUse, Holder
from slurm_elastic.providers.openstack import CLOUD
from slurm_elastic.testing.contract import CLUSTER


def test_from_an_empty_project_to_a_machine_and_back(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    before = project.neutron.snapshot()
    assert project.make() == 0, capsys.readouterr().err
    cloud = project.cloud
    text = project.yaml.read_text()
    assert "# the site's own words stay" in text
    assert "# made by hand" in text
    assert stat.S_IMODE(project.key.stat().st_mode) == 0o600
    rules = project.neutron.records["security-group-rules"].values()
    own = {
        (r["direction"], r["protocol"], r["port_range_min"], r["remote_ip_prefix"])
        for r in rules
        if r["security_group_id"] == cloud.security_groups[0]
    }
    assert own == {
        ("egress", "udp", 51820, "192.0.2.7/32"), ("egress", "tcp", 80, "169.254.169.254/32"),
    }  # fmt: skip

    (machine,) = project.launch()
    order = project.bed.world.bodies[-1]
    assert order["networks"] == [{"uuid": cloud.networks[0]}]
    assert order["security_groups"] == [{"name": cloud.security_groups[0]}]
    assert order["key_name"] == cloud.key_name == "slurm-elastic-alps-stack"
    capsys.readouterr()
    assert project.unmake() == 0
    out = capsys.readouterr().out
    assert f"in use by {machine.id}" in out
    assert "remove" not in out, "a running machine keeps its network, group and router"
    assert project.cloud == cloud

    project.bed.world.servers.clear()
    assert project.unmake() == 0
    assert project.neutron.snapshot() == before
    assert project.yaml.read_text() == project.text
    assert not project.key.exists()
    assert (project.credentials, project.login.exists()) == ([], False)


def test_the_services_log_in_with_a_credential_of_the_least_role(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    assert project.make("--dry-run") == 0
    assert f"create file {project.login}: the application credential's" in capsys.readouterr().out
    assert (project.credentials, project.login.exists()) == ([], False)
    assert project.make() == 0
    out = capsys.readouterr().out
    (made,) = project.credentials
    assert made["roles"] == [{"name": "member"}], "not all of an administrator's"
    assert not made["unrestricted"]
    assert made["secret"] in project.login.read_text()
    assert made["secret"] not in out + project.yaml.read_text()
    assert stat.S_IMODE(project.login.stat().st_mode) == 0o600
    assert project.login.stat().st_uid == trusted_uid()
    assert f"clouds_file: {project.login}    # in slurm-elastic.yaml" in out
    present = f"clouds_file: {project.bed.file}"
    project.yaml.write_text(
        project.yaml.read_text().replace(present, f"clouds_file: {project.login}")
    )
    (machine,) = project.launch()
    project.bed.world.servers.clear()
    capsys.readouterr()
    assert project.unmake() == 0
    assert "in use by slurm-elastic.yaml (clouds_file)" in capsys.readouterr().out
    assert (project.credentials, project.login.exists()) == ([made], True), machine.id
    project.yaml.write_text(
        project.yaml.read_text().replace(f"clouds_file: {project.login}", present)
    )
    assert project.unmake() == 0
    assert (project.credentials, project.login.exists()) == ([], False)


def trusted_uid() -> int:
    return pwd.getpwnam("slurm").pw_uid if os.geteuid() == 0 else os.geteuid()


def test_the_entry_keeps_certificates_and_loses_passwords(project: Project) -> None:
    entry = yaml.safe_load(project.bed.file.read_text())
    entry["clouds"]["hpc"] |= {"interface": "public", "cacert": "/etc/ca.pem"}
    project.bed.file.write_text(yaml.safe_dump(entry))
    assert project.make() == 0
    written = yaml.safe_load(project.login.read_text())["clouds"]["hpc"]
    assert written["interface"] == "public"
    assert written["cacert"] == "/etc/ca.pem"
    assert set(written["auth"]) == {
        "auth_url", "user_id", "application_credential_name", "application_credential_secret"
    }  # fmt: skip
    assert PASSWORD not in project.login.read_text()


def test_a_lost_file_is_told(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    assert project.make() == 0
    project.login.unlink()
    capsys.readouterr()
    assert project.make() == 0
    assert f"--unmake, then --make: {project.login} is gone" in capsys.readouterr().out
    assert project.unmake() == 0
    assert project.make() == 0
    assert project.credentials[0]["secret"] in project.login.read_text()


def test_a_file_or_credential_of_others_is_in_the_way(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    before = project.neutron.snapshot()
    project.login.write_text("clouds: {}\n")
    assert project.make() == 2
    assert f"{project.login}: it is there, and init did not make it" in capsys.readouterr().err
    assert project.neutron.snapshot() == before
    project.login.unlink()
    theirs = {"id": "1" * 8, "name": "slurm-elastic-alps-stack", "secret": "x", "roles": []}
    project.bed.world.credentials["1" * 8] = theirs
    assert project.make() == 2
    assert "application credential 11111111: a resource with this name" in capsys.readouterr().err
    assert project.make("--without", "application-credential") == 0
    assert project.unmake() == 0
    assert project.credentials == [theirs]


def test_a_login_that_may_make_none_names_the_way_out(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "You are not authorized to perform the requested action."
    project.stand_in.refuse(403, words, "* /v3/users/u/application_credentials")
    assert project.make() == 2
    assert "add --without application-credential" in capsys.readouterr().err
    assert project.make("--without", "application-credential") == 0
    project.stand_in.heal()
    assert not project.login.exists()


def test_a_credential_in_use_is_kept(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    entry = yaml.safe_load(project.bed.file.read_text())
    entry["clouds"]["hpc"] |= {
        "auth_type": "v3applicationcredential",
        "auth": {
            "auth_url": f"{project.stand_in.url}/v3",
            "application_credential_id": "ac",
            "application_credential_secret": PASSWORD,
        },
    }
    project.bed.file.write_text(yaml.safe_dump(entry))
    assert project.make() == 0
    assert "keep    application credential in clouds.yaml" in capsys.readouterr().out
    assert (project.credentials, project.login.exists()) == ([], False)
    assert project.unmake() == 0


@pytest.mark.parametrize("runs", [True, False], ids=["machines run", "nothing runs"])
def test_the_secret_of_another_administrators_credential_stays(
    project: Project, runs: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    assert project.make() == 0
    if runs:
        project.launch()
    secret = project.login.read_text()
    project.bed.world.user = "other"
    capsys.readouterr()
    assert project.unmake() == 0
    assert f"{project.login} stays, because its application credential may still exist" in (
        "".join(capsys.readouterr())
    )
    assert project.login.read_text() == secret
    assert len(project.credentials) == 1


def test_the_secret_of_a_credential_that_its_user_has_removed_goes(project: Project) -> None:
    assert project.make() == 0
    project.bed.world.credentials.clear()
    assert project.unmake() == 0
    assert not project.login.exists()


def test_the_secret_of_a_credential_that_somebody_marked_otherwise_stays(project: Project) -> None:
    assert project.make() == 0
    (made,) = project.bed.world.credentials.values()
    made["description"] = "ours"
    assert project.unmake() == 0
    assert project.login.exists()


def test_a_file_that_does_not_say_whose_secret_it_has_proves_nothing(project: Project) -> None:
    assert project.make() == 0
    text = project.login.read_text()
    project.login.write_text("\n".join(x for x in text.splitlines() if "user_id" not in x))
    project.bed.world.credentials.clear()
    assert project.unmake() == 0
    assert project.login.exists()


def test_the_second_run_changes_nothing(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    assert project.make() == 0
    after, text = project.neutron.snapshot(), project.yaml.read_text()
    capsys.readouterr()
    assert project.make() == 0
    assert "nothing is to be done" in capsys.readouterr().out
    assert (project.neutron.snapshot(), project.yaml.read_text()) == (after, text)


CALLS = [
    "POST /network/v2.0/networks", "POST /network/v2.0/subnets", "POST /network/v2.0/routers",
    "PUT /network/v2.0/routers/*", "POST /network/v2.0/security-groups",
    "DELETE /network/v2.0/security-group-rules/*", "POST /network/v2.0/security-group-rules",
    "POST /compute/v2.1/os-keypairs", "POST /v3/users/u/application_credentials",
]  # fmt: skip


@pytest.mark.parametrize("kind", [Kind.RESET_BEFORE, Kind.RESET_AFTER])
@pytest.mark.parametrize("call", CALLS)
def test_a_run_that_ends_at_any_step_is_completed_and_removed(
    project: Project, call: str, kind: Kind, capsys: pytest.CaptureFixture[str]
) -> None:
    before = project.neutron.snapshot()
    for complete in (False, True):
        project.stand_in.fail(kind, call, count=1)
        assert project.make() == 2
        project.stand_in.heal()
        assert "done before: " in capsys.readouterr().err
        if complete:
            assert project.make() == 0
            assert project.make() == 0
            assert "nothing is to be done" in capsys.readouterr().out
        assert project.unmake() == 0
        assert project.neutron.snapshot() == before
        assert (project.credentials, project.login.exists()) == ([], False)
        assert project.yaml.read_text() == project.text


REMOVALS = [
    "DELETE /network/v2.0/networks/*", "DELETE /network/v2.0/subnets/*",
    "DELETE /network/v2.0/routers/*", "PUT /network/v2.0/routers/*",
    "DELETE /network/v2.0/security-groups/*", "DELETE /compute/v2.1/os-keypairs/*",
    "DELETE /v3/users/u/application_credentials/*",
]  # fmt: skip


@pytest.mark.parametrize("kind", [Kind.RESET_BEFORE, Kind.RESET_AFTER])
@pytest.mark.parametrize("call", REMOVALS)
def test_a_removal_that_ends_at_any_step_is_completed(
    project: Project, call: str, kind: Kind
) -> None:
    before = project.neutron.snapshot()
    assert project.make() == 0
    project.stand_in.fail(kind, call, count=1)
    assert project.unmake() == 2
    project.stand_in.heal()
    assert project.unmake() == 0
    assert project.neutron.snapshot() == before
    assert (project.credentials, project.login.exists()) == ([], False)
    assert project.yaml.read_text() == project.text


def test_a_missing_right_is_named(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    message = "rule:create_router is disallowed by policy"
    project.stand_in.refuse(403, message, "POST /network/v2.0/routers")
    assert project.make() == 2
    told = capsys.readouterr().err
    assert "the right to POST /routers (network) is missing" in told
    assert "done before: created network" in told
    project.stand_in.heal()


def test_what_somebody_changed_stays(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    assert project.make() == 0
    group = project.cloud.security_groups[0]
    rule = {"security_group_id": group, "direction": "ingress", "ethertype": "IPv4"}
    project.neutron._create("security-group-rules", rule)
    subnet = {"name": "theirs", "network_id": project.cloud.networks[0], "cidr": "10.7.0.0/24"}
    project.neutron._create("subnets", subnet)
    capsys.readouterr()
    assert project.unmake() == 0
    out = capsys.readouterr().out
    assert "somebody changed it: it has a rule of its own" in out
    assert "somebody changed it: it has subnet " in out
    assert project.cloud.security_groups == (group,)
    assert project.cloud.networks
    assert project.cloud.key_name is None


def test_a_name_with_an_underscore_is_found_again(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    before = project.neutron.snapshot()
    text = project.text.replace("name: stack", "name: my_stack")
    project.yaml.write_text(text.replace("cloud: stack", "cloud: my_stack"))
    assert project.make() == 0
    capsys.readouterr()
    assert project.make() == 0
    assert "nothing is to be done" in capsys.readouterr().out
    assert project.unmake() == 0
    assert project.neutron.snapshot() == before


def test_several_networks_to_the_outside(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    project.neutron.records["networks"]["x"] = {
        "id": "x", "name": "other", "router:external": True, "description": ""
    }  # fmt: skip
    assert project.make() == 2
    assert "--external-network: expected one of the project's: other, public" in (
        capsys.readouterr().err
    )
    assert project.make("--external-network", "public") == 0
    (router,) = project.neutron.records["routers"].values()
    assert router["external_gateway_info"] == {"network_id": EXTERNAL}


def test_named_networks_are_kept(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    project.text = project.text.replace(
        "    image: worker", "    networks: [cluster-net]\n    image: worker"
    )
    project.yaml.write_text(project.text)
    before = project.neutron.snapshot()
    assert project.make() == 0
    assert "keep    network cluster-net" in capsys.readouterr().out
    assert not project.neutron.records["subnets"]
    assert project.unmake() == 0
    assert project.neutron.snapshot() == before


def test_all_requests_are_in_the_rules_for_make(project: Project) -> None:
    use = GrantUse(cluster=CLUSTER, pools=())
    rules = json.loads(CLOUD.grant(project.cloud, use, Holder.MAKE).text)
    assert project.make() == 0
    assert project.unmake() == 0
    roots = {"compute": "/compute", "network": "/network", "image": "/image"}
    allowed = [
        (r, re.compile(f"{r['method']} {roots[r['service']]}{r['path'].replace('*', '[^/]+')}"))
        for r in rules
    ]
    seen = {request for request in project.bed.world.requests if re.search(r"/v2\S*/\w", request)}
    used = [{request for request in seen if rule.fullmatch(request)} for _, rule in allowed]
    assert set().union(*used) == seen
    assert all(used), "no rule is too much"


@pytest.mark.parametrize("join", ["tunnel", "routes"])
def test_the_document_has_what_is_made(
    project: Project, capsys: pytest.CaptureFixture[str], join: str
) -> None:
    if join == "routes":
        start, end = project.text.index("  network:"), project.text.index("clouds:")
        project.yaml.write_text(project.text[:start] + project.text[end:])
    assert project.init("--make", "--dry-run", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    terraform_page.judge(document["resources"], "openstack")
    assert project.make() == 0
    made = re.findall(r"^  create  (.*?)(?:  .*)?$", capsys.readouterr().out, re.MULTILINE)
    assert made == [f"{row['kind']} {row['name']}".strip() for row in document["resources"]]
