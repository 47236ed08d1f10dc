"""What is not to be used now, and why: offers, markets, clouds, pools, nodes, jobs."""

from __future__ import annotations

from msgspec import Struct

from slurm_elastic.model.causes import AnyCause, Quoted

COOL_DOWN, BREAKER, DOUBT = "cool-down", "breaker", "doubt"
NO_SPOT = "no-spot"
CAPACITY, POLICY, OPERATOR = "capacity", "policy", "by-operator"
"""Why a node is held: no offer is left for it; the site's policies start none now; an operator
wants nothing new there.
"""
HOLDS = frozenset({CAPACITY, POLICY, OPERATOR})
"""The kinds that keep nodes from Slurm."""
TIMED = frozenset({COOL_DOWN, BREAKER, CAPACITY})
"""The kinds that are set for a time, and over after it."""


_UNKNOWN = Quoted(text="")


class Exclusion(Struct, frozen=True, kw_only=True):
    """Something that is not to be used now: ``scope``, until ``until`` (Unix time), for ``cause``.

    ``kind`` says what the scope is: of COOL_DOWN an offer (``Offer.key``) or, with stars in it, a
    cloud's market or a cloud, with one part more, a pool's name, for that pool only; of BREAKER a
    pool, of which so many machines in a row (``count``) did not come up (``until`` 0: it is not
    paused yet; over: one machine is tried); of CAPACITY a node for which no offer has room; of
    POLICY and OPERATOR a node, for other reasons (``until`` says nothing then); of DOUBT a cloud
    whose list of machines was wrong for long (endless: a person or the list ends it), ``about`` has
    what that lacked: ids, and nodes as ``node:NAME``; of NO_SPOT a job (``job:NUMBER``) that gets
    no spot machine, as it cannot be saved.

    ``count`` refusals in a row have the next cool-down grow. ``code`` is the cause in a word of the
    cloud's, ``since`` when it began, ``pool`` the node's.
    """

    kind: str
    scope: str
    until: float = 0.0
    cause: AnyCause = _UNKNOWN
    code: str = ""
    count: int = 0
    since: float = 0.0
    pool: str = ""
    about: tuple[str, ...] = ()
