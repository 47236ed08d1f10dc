"""``slurm-elastic image``: golden images: built, proved by a boot, uploaded, listed."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from slurm_elastic.base.errors import ConfigError, SlurmElasticError
from slurm_elastic.base.extras import missing_module
from slurm_elastic.base.signals import ended_like_ctrl_c
from slurm_elastic.cli import image_clouds
from slurm_elastic.cli.arguments import count
from slurm_elastic.cli.helptext import examples
from slurm_elastic.cli.streams import visible
from slurm_elastic.config.configfile import load_as
from slurm_elastic.image import label
from slurm_elastic.image.build import build
from slurm_elastic.image.cloud_metadata import KINDS
from slurm_elastic.image.recipe import Recipe, problems

HEARTBEAT = 180
TIMEOUT = 900


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "image",
        description="Make the image that machines start from, with the head's own release of "
        "Slurm, prove that a machine of it becomes a node, and upload it into a cloud. See "
        "docs/images.md.",
        epilog=examples(
            "slurm-elastic image build compute.qcow2",
            "slurm-elastic image check compute.qcow2",
            "slurm-elastic image upload stack compute.qcow2",
        ),
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    _add_build(actions)
    _add_check(actions)
    image_clouds.add_upload(actions)
    _add_list(actions)


def _add_list(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    found = actions.add_parser(
        "list",
        help="show the images in a directory or a cloud, and what is in them",
        description="Show the images in a directory, the newest first: name, release of Slurm, "
        "other software, age, and whether the munge key is in it. With the name of a cloud, its "
        "images whose tags say what is in them: name, id, releases, size, age, and the pools "
        "whose machines start from them now.",
        epilog=examples("slurm-elastic image list /srv/images", "slurm-elastic image list aws"),
    )
    found.add_argument(
        "place", type=Path, metavar="DIR|CLOUD",
        help="the directory of the images; where there is none of that name, a configured cloud",
    )  # fmt: skip
    found.set_defaults(run=run_list)


def _add_build(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    made = actions.add_parser(
        "build",
        help="make an image from Debian's packages and a recipe",
        description="Make an image from the packages of this host's apt sources: slurmd, munge, "
        "cloud-init and an SSH server, with what the recipe adds. No key is in it. A file that "
        "ends in .qcow2 or .raw is a disk that boots, one in .tar is for 'docker import'; in a "
        "directory it is named by what is in it. FILE.json says what that is. Needs root.",
        epilog=examples(
            "slurm-elastic image build compute.qcow2",
            "slurm-elastic image build --recipe compute.yaml /srv/images",
        ),
    )
    made.add_argument("place", type=Path, metavar="FILE|DIR", help="the image, or where it goes")
    made.add_argument(
        "--recipe", type=Path, metavar="FILE",
        help="a YAML file with the release, packages, files, users and mounts of the image "
        "(default: this host's releases of Debian and Slurm, and nothing besides)",
    )  # fmt: skip
    made.set_defaults(run=run_build)


def _add_check(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    proved = actions.add_parser(
        "check",
        help="boot a machine of an image, have it join and run a job, look for secrets",
        description="Boot a machine of an image as a cloud would, in a network of its own: it "
        "joins a throw-away slurmctld by the shipped text, with a munge key that is brought once "
        "its host key was read from its console, runs a job, and powers itself off when the head "
        "is gone. Image, user data, metadata and console are searched for secrets. Takes minutes, "
        "and longer without KVM. Needs root. Exit code 1: the image is no good.",
        epilog=examples("slurm-elastic image check compute.qcow2"),
    )
    proved.add_argument("file", type=Path, metavar="FILE", help="the image")
    proved.add_argument(
        "--as", dest="cloud", choices=list(KINDS), default="ec2", metavar="|".join(KINDS),
        help="the way in which it is told who it is: EC2's metadata service (IMDSv2), OpenStack's "
        "config drive, OpenNebula's CONTEXT (default: %(default)s)",
    )  # fmt: skip
    proved.add_argument(
        "--heartbeat", type=count, default=HEARTBEAT, metavar="SECONDS",
        help="how long the machine waits for a head that is gone (default: %(default)s)",
    )  # fmt: skip
    proved.add_argument(
        "--timeout", type=count, default=TIMEOUT, metavar="SECONDS",
        help="how long each step may take (default: %(default)s)",
    )  # fmt: skip
    proved.add_argument(
        "--keep", type=Path, metavar="DIR", help="put the console and all logs there"
    )
    proved.set_defaults(run=run_check)


def run_build(args: argparse.Namespace) -> int:
    recipe = Recipe()
    if args.recipe is not None:
        recipe = load_as(args.recipe, Recipe, "debian, slurm, packages, files, users or mounts")
        if found := problems(recipe):
            raise ConfigError(*(f"{args.recipe}: {text}" for text in found))
    if not args.place.is_dir() and not args.place.parent.is_dir():
        raise SlurmElasticError(f"{args.place.parent} is no directory")
    with ended_like_ctrl_c():
        build(recipe, args.place, _say)
    return 0


def run_check(args: argparse.Namespace) -> int:
    """0 where the image is good, else 1."""
    try:
        from slurm_elastic.image.check import check
    except ModuleNotFoundError as error:
        raise ConfigError(missing_module(error, "ssh")) from error
    with ended_like_ctrl_c():
        good = check(
            args.file, _say, cloud=args.cloud, heartbeat=args.heartbeat, timeout=args.timeout,
            keep=args.keep,
        )  # fmt: skip
    print("the image is good" if good else "the image is NO good")
    return 0 if good else 1


def run_list(args: argparse.Namespace) -> int:
    """One line for each."""
    if not args.place.is_dir():
        return image_clouds.run_list(args)
    for one in label.labels(args.place):
        days = (time.time() - one.built) / 86400
        secret = "  munge key inside: a secret" if one.secret else ""
        text = f"{one.file}  {one.os} {one.version}  {one.software}  {days:.0f} days old{secret}"
        print(visible(text))
    return 0


def _say(text: str) -> None:
    print(visible(text), flush=True)
