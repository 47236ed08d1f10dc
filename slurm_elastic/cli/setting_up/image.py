"""``slurm-elastic image``: build, test, upload and list golden images."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from slurm_elastic.base.errors import ConfigError, SlurmElasticError
from slurm_elastic.base.extras import missing_module
from slurm_elastic.base.pages import page
from slurm_elastic.base.processes.signals import ended_like_ctrl_c
from slurm_elastic.cli.arguments import count
from slurm_elastic.cli.helptext import examples
from slurm_elastic.cli.setting_up import image_clouds
from slurm_elastic.cli.streams import visible
from slurm_elastic.config.configfile import load_as
from slurm_elastic.image import label
from slurm_elastic.image.build import build
from slurm_elastic.image.cloud_metadata import KINDS
from slurm_elastic.image.recipe import Recipe, problems

HEARTBEAT_S = 180
STEP_TIMEOUT_S = 900


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "image",
        description="Make the image that machines start from, with the head's own release of "
        "Slurm, prove that a machine of it becomes a node, and upload it into a cloud. See "
        f"{page('images')}.",
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
    command = actions.add_parser(
        "list",
        help="show the images in a directory or a cloud, and their contents",
        description="Show the images in a directory, the newest first: name, release of Slurm, "
        "other software, age, and whether the munge key is in it. Given the name of a cloud, show "
        "its images with our tags: name, id, releases, size, age, and the pools whose machines "
        "currently start from them.",
        epilog=examples("slurm-elastic image list /srv/images", "slurm-elastic image list aws"),
    )
    command.add_argument(
        "place", type=Path, metavar="DIR|CLOUD",
        help="the directory of the images; if it does not exist, the name of a configured cloud",
    )  # fmt: skip
    command.set_defaults(run=run_list)


def _add_build(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = actions.add_parser(
        "build",
        help="make an image from Debian's packages and a recipe",
        description="Make an image from the packages of this host's apt sources: slurmd, munge, "
        "cloud-init and an SSH server, with what the recipe adds. No key is in it. A file that "
        "ends in .qcow2 or .raw is a disk that boots, one that ends in .tar is for 'docker "
        "import'. In a directory, the image is named after its contents. FILE.json lists the "
        "contents. Needs root.",
        epilog=examples(
            "slurm-elastic image build compute.qcow2",
            "slurm-elastic image build --recipe compute.yaml /srv/images",
        ),
    )
    command.add_argument("place", type=Path, metavar="FILE|DIR", help="the image or its directory")
    command.add_argument(
        "--recipe", type=Path, metavar="FILE",
        help="a YAML file with the release, packages, files, users and mounts of the image "
        "(default: this host's releases of Debian and Slurm, and nothing else)",
    )  # fmt: skip
    command.set_defaults(run=run_build)


def _add_check(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = actions.add_parser(
        "check",
        help="boot a machine of an image, have it join and run a job, search for secrets",
        description="Boot a machine of an image as a cloud would, in a network of its own. The "
        "machine joins a throw-away slurmctld with the shipped join program. It gets its munge "
        "key by SSH, after its host key was read from its console. It runs a job, and powers "
        "itself off when the head is gone. Image, user data, metadata and console are searched "
        "for secrets. This takes minutes, longer without KVM. Needs root. Exit code 1: the image "
        "is not usable.",
        epilog=examples("slurm-elastic image check compute.qcow2"),
    )
    command.add_argument("file", type=Path, metavar="FILE", help="the image")
    command.add_argument(
        "--as", dest="cloud", choices=list(KINDS), default="ec2", metavar="|".join(KINDS),
        help="how the machine learns its identity: EC2's metadata service (IMDSv2), OpenStack's "
        "config drive, OpenNebula's CONTEXT (default: %(default)s)",
    )  # fmt: skip
    command.add_argument(
        "--heartbeat", type=count, default=HEARTBEAT_S, metavar="SECONDS",
        help="how long the machine waits for a head that does not answer (default: %(default)s)",
    )  # fmt: skip
    command.add_argument(
        "--timeout", type=count, default=STEP_TIMEOUT_S, metavar="SECONDS",
        help="how long each step may take (default: %(default)s)",
    )  # fmt: skip
    command.add_argument(
        "--keep", type=Path, metavar="DIR", help="put the console and all logs there"
    )
    command.set_defaults(run=run_check)


def run_build(args: argparse.Namespace) -> int:
    recipe = Recipe()
    if args.recipe is not None:
        recipe = load_as(args.recipe, Recipe, "debian, slurm, packages, files, users or mounts")
        if mistakes := problems(recipe):
            raise ConfigError(*(f"{args.recipe}: {text}" for text in mistakes))
    if not args.place.is_dir() and not args.place.parent.is_dir():
        raise SlurmElasticError(f"{args.place.parent} is no directory")
    with ended_like_ctrl_c():
        build(recipe, args.place, _say)
    return 0


def run_check(args: argparse.Namespace) -> int:
    """Check the image. Exit 0 if it is usable, else 1."""
    try:
        # Imported only here: it needs the packages of the extra ``ssh``, the other actions do not.
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
    """Print one line for each image of the directory, or of the cloud."""
    if not args.place.is_dir():
        return image_clouds.run_list(args)
    for image in label.labels(args.place):
        days = (time.time() - image.built) / 86400
        secret = "  munge key inside: a secret" if image.secret else ""
        text = (
            f"{image.file}  {image.os} {image.version}  {image.software}  "
            f"{days:.0f} days old{secret}"
        )
        print(visible(text))
    return 0


def _say(text: str) -> None:
    print(visible(text), flush=True)
