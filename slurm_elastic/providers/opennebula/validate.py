"""Checks that the settings of an OpenNebula cloud make sense by themselves: endpoint,
waits. Pure.
"""

from __future__ import annotations

import re

from slurm_elastic.config.basics.readable_url import is_readable_url
from slurm_elastic.config.document import shown
from slurm_elastic.config.partial import Draft
from slurm_elastic.providers.base.validate import check_listing_lag, check_wait
from slurm_elastic.providers.opennebula.settings import OpenNebulaCloud


def check(draft: Draft, i: int, cloud: OpenNebulaCloud) -> None:
    """Report all problems of a cloud of provider opennebula."""
    cloud_path = ("clouds", i)
    is_plain = re.fullmatch(r"https?://[^\s/@]+(/\S*)?", cloud.endpoint)
    if not (is_plain and is_readable_url(cloud.endpoint)):
        expected = "the URL of oned, such as http://front-end:2633/RPC2, without a password"
        # The part before an @ may be a password, which must not be shown.
        problem = "a user or password in it" if "@" in cloud.endpoint else shown(cloud.endpoint)
        draft.problems.add((*cloud_path, "endpoint"), problem, expected)
    elif cloud.ca_file is not None and not cloud.endpoint.startswith("https://"):
        expected = "no ca_file: the endpoint is not https"
        draft.problems.add((*cloud_path, "ca_file"), shown(cloud.ca_file), expected)
    check_wait(draft, i, cloud, "pending_timeout")
    check_listing_lag(draft, i, cloud)
