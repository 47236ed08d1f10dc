"""``slurm-elastic iam``: print the least rights that a cloud account needs for this site."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.base.hostlist import expand
from slurm_elastic.base.pages import page
from slurm_elastic.cli.helptext import examples
from slurm_elastic.cli.streams import visible
from slurm_elastic.config import NO_UUID, Config
from slurm_elastic.config.cloud_kinds import table
from slurm_elastic.config.clouds import CloudSettings
from slurm_elastic.config.configfile import load
from slurm_elastic.config.grants import Holder, use_of


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "iam",
        description=f"Write the rights of a cloud's account. See {page('rights')}.",
        epilog=examples("slurm-elastic iam render aws"),
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    render = actions.add_parser(
        "render",
        help="print the least rights for exactly the configured types, images, networks and tags",
        description="Print the least rights that the configuration needs: an IAM policy (aws), "
        "a custom role (azure), access rules of an application credential (openstack), or a script "
        "of ACL rules and quotas (opennebula). Standard error gets the steps to apply it and its "
        "limits. No cloud is asked; 'slurm-elastic doctor' checks rights if the cloud can check "
        "them.",
        epilog=examples(
            "slurm-elastic iam render aws",
            "slurm-elastic iam render aws --for watchdog",
        ),
    )
    render.add_argument(
        "kind", metavar="KIND", help="a provider: aws, azure, gcp, openstack or opennebula"
    )
    render.add_argument("--cloud", metavar="NAME", help="the cloud, if several are of that kind")
    render.add_argument(
        "--for", dest="holder", type=Holder, choices=list(Holder), default=Holder.SERVICES,
        metavar="|".join(Holder),
        help="slurm-elasticd and slurm-elastic-ckptman, which share an account; "
        "slurm-elastic-watchdog's own; or an administrator's, to upload images or for "
        "'init --make' (default: %(default)s)",
    )  # fmt: skip
    render.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the document. Exit 1 if the cloud has no document for that holder.

    Raises ConfigError if no such cloud is configured or the cluster has no UUID yet.
    """
    config = load(Path(args.config))
    cloud = _chosen(config, args.kind, args.cloud)
    if config.cluster.uuid is None:
        raise ConfigError(NO_UUID)
    grant = table().kind(cloud.provider).grant
    if grant is None:
        raise ConfigError(f"a cloud of provider {cloud.provider} has no accounts with rights")
    document = grant(cloud, use_of(config, cloud, expand), args.holder)
    for note in document.notes:
        print(visible(f"# {note}"), file=sys.stderr)
    if not document.text:
        return 1
    print(visible(document.text))
    return 0


def _chosen(config: Config, kind: str, name: str | None) -> CloudSettings:
    of_kind = [cloud for cloud in config.clouds if cloud.provider == kind]
    names = ", ".join(cloud.name for cloud in of_kind)
    if not of_kind:
        providers = ", ".join(sorted({cloud.provider for cloud in config.clouds}))
        raise ConfigError(
            f"clouds: found none with provider {kind!r}, expected one of: {providers}"
        )
    if name is None:
        if len(of_kind) > 1:
            raise ConfigError(f"several clouds have provider {kind}: add --cloud with {names}")
        return of_kind[0]
    for cloud in of_kind:
        if cloud.name == name:
            return cloud
    raise ConfigError(f"--cloud: found {name!r}, expected a cloud of provider {kind}: {names}")
