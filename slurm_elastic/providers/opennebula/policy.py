"""Builds a script that limits an account to the rights and the quota that the configuration needs.
It uses OpenNebula's own commands ("Managing ACL Rules", "Usage Quotas").

An account owns the machines that it creates, and sees and ends no others, without any rule. So it
must be in a group without rules.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from slurm_elastic.config.grants import Grant, GrantUse, Holder
from slurm_elastic.model.cluster import Pool
from slurm_elastic.providers.base.preflight import demand_bounds
from slurm_elastic.providers.opennebula.settings import OpenNebulaCloud

_ACCOUNT = """\
#!/bin/sh
# run it as oneadmin, with the account that {who}: sh FILE ACCOUNT
set -e
account=$(oneuser show "${{1:?name the account}}")
account=$(echo "$account" | sed -n 's/^ID *: *//p')
allow() {{
  said=$(oneacl create "#${{account:?the account has no id}} $1" 2>&1) && return
  # The rule may be of an earlier run, or of another template.
  case $said in
  *"already exists"*) ;;
  *) echo "$said" >&2; exit 1 ;;
  esac
}}
"""
_SCRIPT = """\
each() {{
  shown=$(onetemplate show "$1")
  echo "$shown" | sed -n "s/.*$2=\\"\\([0-9][0-9]*\\)\\".*/\\1/p" | sort -u
}}
{rules}
quota=$(mktemp)
cat > "$quota" <<'END'
{quota}
END
oneuser quota "$account" "$quota"
rm -f "$quota"
"""

_IMAGES = """\
allow "IMAGE/* CREATE"
allow "DATASTORE/#{store} USE"
"""
_APPLIED = "sh FILE ACCOUNT   # as oneadmin; the account in a group that has no rules (oneacl list)"
_OWNER = (
    "an image belongs to the account that uploads it; where that is not the services' own, give "
    "theirs the right to use it (oneimage chown or chmod), and have image_owners name its owner"
)


def grant(settings: OpenNebulaCloud, use: GrantUse, holder: Holder) -> Grant:
    """A shell script. See ``CloudKind.grant``. Only the owner of machines can end them."""
    if holder is Holder.WATCHDOG:
        text = "in OpenNebula only their owner can end machines: the watchdog needs the account"
        return Grant(text="", notes=(f"{text} of the services",))
    if holder is Holder.MAKE:
        return Grant(text="", notes=("init --make creates nothing in OpenNebula",))
    if holder is Holder.IMAGES:
        store = settings.image_datastore
        script = _ACCOUNT.format(who="uploads images") + _IMAGES.format(store=store)
        return Grant(text=script.rstrip("\n"), notes=(_APPLIED, _OWNER))
    script = _ACCOUNT.format(who="slurm-elastic uses") + _SCRIPT.format(
        rules="\n".join(_rules(settings, use.pools)), quota=_quota(settings, use.pools)
    )
    return Grant(text=script.rstrip("\n"), notes=tuple(_notes(settings, use.pools)))


def _rules(settings: OpenNebulaCloud, pools: Sequence[Pool]) -> Iterator[str]:
    yield 'allow "VM/* CREATE"'
    # The types of the pools. Doctor checks all configured types.
    types = {n for p in pools for n in p.instance_types or settings.types if n in settings.types}
    for number in sorted({settings.types[name].template for name in types}):
        yield f'allow "TEMPLATE/#{number} USE"'
        # By a variable: in the list of "for", sh would pass over a template that it cannot read.
        yield f"ids=$(each {number} IMAGE_ID)"
        yield 'for id in $ids; do allow "IMAGE/#$id USE"; done'
        yield f"ids=$(each {number} NETWORK_ID)"
        yield 'for id in $ids; do allow "NET/#$id USE"; done'
    fixed_ids = {int(p.image.id) for p in pools if p.image is not None and p.image.id is not None}
    yield from (f'allow "IMAGE/#{number} USE"' for number in sorted(fixed_ids))
    yield 'allow "HOST/* USE"  # to see them: room is known before an order, and hosts taken out'


def _quota(settings: OpenNebulaCloud, pools: Sequence[Pool]) -> str:
    kinds = settings.types
    limits = {
        key: demand_bounds(pools, sizes, settings.limits.nodes)[1]
        for key, sizes in (
            ("VMS", dict.fromkeys(kinds, 1)),
            ("CPU", {n: kind.cpus for n, kind in kinds.items()}),
            ("MEMORY", {n: kind.memory for n, kind in kinds.items()}),
        )
    }
    lines = ",\n".join(f'  {key}="{value:.0f}"' for key, value in limits.items())
    return f"VM=[\n{lines} ]"


def _notes(settings: OpenNebulaCloud, pools: Sequence[Pool]) -> Iterator[str]:
    yield _APPLIED
    yield "networks and images that a template names in words get no rule: add theirs by number"
    if any(pool.image is not None and pool.image.id is None for pool in pools):
        owners = ", ".join(settings.image_owners)
        yield f"pools look for images: give USE of those (owners {owners}) as they are made"
    yield "VMS, CPU and MEMORY count all machines of the account, so it should have no others"
