"""Checks that the settings of an OpenStack cloud make sense by themselves: names, networks, waits.
Pure.
"""

from __future__ import annotations

from slurm_elastic.config.document import shown
from slurm_elastic.config.partial import Draft
from slurm_elastic.providers.base.validate import check_listing_lag, check_wait
from slurm_elastic.providers.openstack.settings import NETWORK_WORDS, OpenStackCloud


def check(draft: Draft, i: int, cloud: OpenStackCloud) -> None:
    """Report all problems of a cloud of provider openstack."""
    cloud_path = ("clouds", i)
    for key, text in (("cloud", cloud.cloud), ("image", cloud.image)):
        if not text.strip():
            draft.problems.add((*cloud_path, key), shown(text), "a name")
    for n, word in enumerate(cloud.networks):
        if word in NETWORK_WORDS and len(cloud.networks) > 1:
            draft.problems.add((*cloud_path, "networks", n), shown(word), "that word alone")
    check_wait(draft, i, cloud, "schedule_timeout")
    check_listing_lag(draft, i, cloud)
