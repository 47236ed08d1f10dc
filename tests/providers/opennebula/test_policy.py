"""The rules of ``iam render opennebula`` let the account do all that the provider asks, and nothing
else. Which rule a call needs is of OpenNebula's "Authorization Requests Reference"; a call that is
not listed here, or a rule that no call needs, is a mistake.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from msgspec.structs import replace
from providers.opennebula.bed import OneBed

from slurm_elastic.config import Cluster
from slurm_elastic.config.grants import GrantUse, Holder
from slurm_elastic.model.boot_image import ImageChoice
from slurm_elastic.model.protocols import Examinable, Provider
from slurm_elastic.providers import open_provider
from slurm_elastic.providers.opennebula import CLOUD
from slurm_elastic.providers.opennebula.front_end import FrontEnd
from slurm_elastic.sandbox.nebula.control import OneControl
from slurm_elastic.testing.contract import UUID, LaunchContract, spec_for

OWN = {"user.info", "group.info", "vmpool.info", "vmpool.infoextended", "vmpool.infoset",
       "vm.action", "vm.info", "system.version", "vnpool.info", "imagepool.info"}  # fmt: skip
"""One's own account and machines; and lists, which have what the account may use."""
HOST = "HOST/* USE"


ONETEMPLATE = """#!/bin/sh
cat <<END
TEMPLATE CONTENTS
DISK=[
  IMAGE_ID="0" ]
NIC=[ NETWORK_ID="0", SECURITY_GROUPS="0" ]
END
"""
TOOLS = {
    "oneuser": '#!/bin/sh\n[ "$2" = nobody ] && { echo "user not found" >&2; exit 255; }\n[ "$1" = quota ] && { echo "quota $2" >> "$OUT"; cat "$3" >> "$OUT"; }\n'
    'echo "USER 5 INFORMATION"\necho "ID              : 5"\n',
    "oneacl": '#!/bin/sh\n[ -z "$REFUSED" ] || { echo "$REFUSED"; exit 255; }\n'
    'grep -qxF "$*" "$OUT" 2>/dev/null && { echo "Rule $2 already exists" >&2; exit 255; }\n'
    'echo "$*" >> "$OUT"\n',
    "onetemplate": ONETEMPLATE,
}


def carried_out(
    script: str, directory: Path, account: str = "elastic", refused: str = ""
) -> list[str]:
    """The commands that the script gives OpenNebula's own tools. oned refuses a rule that exists
    (AclManager::add_rule). ``refused``: why it refuses all.
    """
    for name, text in TOOLS.items():
        tool = directory / name
        tool.write_text(text)
        tool.chmod(0o755)
    (directory / "script").write_text(script)
    out = directory / "out"
    env = {"PATH": f"{directory}:{os.environ['PATH']}", "OUT": str(out), "REFUSED": refused}
    subprocess.run(["sh", directory / "script", account], env=env, check=True)
    return out.read_text().splitlines()


class GatedBed(OneBed):
    """Refuses what no rule of the opened clouds lets through; keeps the rules that were used."""

    def __init__(self, control: OneControl, directory: Path, patch: pytest.MonkeyPatch) -> None:
        super().__init__(control, directory)
        self.directory = directory
        self.rules: set[str] = set()
        self.used: set[str] = set()
        real = FrontEnd.call

        def call(oned, method: str, *arguments: object):
            if method not in OWN:
                needed = self.needed(method, arguments)
                assert needed <= self.rules, f"{method}: no rule {needed - self.rules}"
                self.used |= needed
            return real(oned, method, *arguments)

        patch.setattr(FrontEnd, "call", call)

    @staticmethod
    def needed(method: str, arguments: tuple[object, ...]) -> set[str]:
        template = f"TEMPLATE/#{arguments[0]} USE" if arguments else ""
        return {
            "template.info": {template},
            "template.instantiate": {template, "VM/* CREATE", "IMAGE/#0 USE", "NET/#0 USE"},
            "hostpool.info": {HOST},
            "image.info": {f"IMAGE/#{arguments[0]} USE" if arguments else ""},
        }[method]

    def open(self, uuid: str = UUID, timeout: float = 60.0, **more: object) -> Provider:
        settings, cluster = (
            self.settings(api_timeout=timeout, **more),
            Cluster(name="site", uuid=uuid),
        )
        use = GrantUse(cluster=cluster, pools=(self.pool,))
        script = CLOUD.grant(settings, use, Holder.SERVICES).text
        for line in carried_out(script, self.directory):
            if line.startswith("create #5 "):
                self.rules.add(line.removeprefix("create #5 "))
        return open_provider(settings, cluster)


@pytest.fixture
def bed(control: OneControl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GatedBed:
    return GatedBed(control, tmp_path, monkeypatch)


class TestByRules(LaunchContract): ...


def test_whatever_is_let_through_is_used(bed: GatedBed) -> None:
    provider = bed.open()
    provider.check()
    assert isinstance(provider, Examinable)
    provider.examine([bed.pool])
    machine = provider.launch(spec_for(bed, provider, 1))[0]
    provider.instances()
    provider.notices()
    provider.terminate([machine.id])
    assert bed.used == bed.rules


def test_the_quota_is_what_the_pools_could_have(bed: GatedBed, tmp_path: Path) -> None:
    pool = bed.pool
    use = GrantUse(cluster=Cluster(name="site", uuid=UUID), pools=(pool,))
    grant = CLOUD.grant(bed.settings(), use, Holder.SERVICES)
    told = carried_out(grant.text, tmp_path)
    at = told.index("quota 5")
    count = len(pool.nodes)
    assert "".join(told[at + 1 :]) == (
        f'VM=[  VMS="{count}",  CPU="{2 * count}",  MEMORY="{4096 * count}" ]'
    )


@pytest.mark.parametrize("holder", [Holder.SERVICES, Holder.IMAGES])
def test_rules_that_exist_are_no_error_and_all_else_ends_the_script(
    bed: GatedBed, tmp_path: Path, holder: Holder
) -> None:
    """It is run again after each change, and two templates may use one network."""
    two = {"other": replace(next(iter(bed.settings().types.values())), template=77)}
    settings = replace(bed.settings(), types=bed.settings().types | two)
    pool = replace(bed.pool, instance_types=tuple(settings.types))
    use = GrantUse(cluster=Cluster(name="site", uuid=UUID), pools=(pool,))
    script = CLOUD.grant(settings, use, holder).text
    first = carried_out(script, tmp_path)
    again = carried_out(script, tmp_path)
    rules = [line for line in again if line.startswith("create ")]
    assert rules == [line for line in first if line.startswith("create ")]
    assert len(set(rules)) == len(rules) > 1
    for wrong in ({"account": "nobody"}, {"refused": "you are not oneadmin"}):
        with pytest.raises(subprocess.CalledProcessError):
            carried_out(script, tmp_path, **wrong)


def test_a_named_image_gets_a_rule_of_its_own(bed: GatedBed) -> None:
    use = GrantUse(
        cluster=Cluster(name="site", uuid=UUID),
        pools=(replace(bed.pool, image=ImageChoice(id="9")),),
    )
    grant = CLOUD.grant(bed.settings(), use, Holder.SERVICES)
    assert 'allow "IMAGE/#9 USE"' in grant.text


def test_the_watchdog_has_no_account_of_its_own(bed: GatedBed) -> None:
    use = GrantUse(cluster=Cluster(name="site", uuid=UUID), pools=(bed.pool,))
    grant = CLOUD.grant(bed.settings(), use, Holder.WATCHDOG)
    assert grant.text == ""
    assert "only their owner can end" in grant.notes[0]
