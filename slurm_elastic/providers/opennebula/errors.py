"""oned's refusals, and what goes wrong on the way to it, as the five of ours.

The codes: "XML-RPC API" of the OpenNebula documentation, ``ErrorCode`` in RequestManager. All
quotas and some mistakes share the code of a missing right, so the text decides there (as 6.10.5 and
7.4.0 have it).
"""

from __future__ import annotations

import http.client
import re
import ssl
import xmlrpc.client
from contextlib import AbstractContextManager
from xml.parsers.expat import ExpatError

from slurm_elastic.base.errors import (
    AuthError,
    CapacityError,
    DeniedError,
    InstanceNotFound,
    ProviderError,
    QuotaError,
    TransientError,
)
from slurm_elastic.providers.base.errors import NoCredentials, translating
from slurm_elastic.providers.base.statuses import kind_of
from slurm_elastic.providers.opennebula.client import NotConnected, Refused

AUTHENTICATION = 0x0100
AUTHORIZATION = 0x0200
NO_EXISTS = 0x0400
ACTION = 0x0800
XML_RPC_API = 0x1000
INTERNAL = 0x2000
ALLOCATE = 0x4000
LOCKED = 0x8000
REPLICATION = 0x10000

NAMES = {
    AUTHENTICATION: "Authentication",
    AUTHORIZATION: "Authorization",
    NO_EXISTS: "NoExists",
    ACTION: "Action",
    XML_RPC_API: "Api",
    INTERNAL: "Internal",
    ALLOCATE: "Allocate",
    LOCKED: "Locked",
    REPLICATION: "Replication",
}
WRONG_STATE = "WrongState"
_NOT_CARRIED_OUT = frozenset(
    {NotConnected.__name__, WRONG_STATE, NAMES[LOCKED], "HTTP429", "HTTP503"}
)
"""Transient, and said before anything is done: 503 is a proxy's that reaches no oned (RFC 9110,
15.6.4), where 502 and 504 mean that oned has not answered.
"""

_QUOTA = re.compile(r"limit of (\S+) reached for (\w+) quota in (\w+)")
_NO_RIGHT = re.compile(r"Not authorized to perform (\w+) (\w+)")
_NO_LEASE = re.compile(r"Cannot get IP/MAC lease|Not enough space in datastore")
_NOT_NOW = re.compile(r"wrong state|not available for state", re.IGNORECASE)
_OUR_MISTAKE = re.compile(r"Parse error|JSON query|is not supported")
_FAULT = re.compile(r"<Fault (-?\d+): ['\"]?(.*?)['\"]?>$")
_METHOD = re.compile(r"^\[one\.[\w.]+\]\s*")
_NO_ANSWER = (OSError, http.client.HTTPException)
_BAD_ANSWER = (
    xmlrpc.client.ResponseError,
    ExpatError,
    ArithmeticError,
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
)


def classify(code: int, message: str) -> tuple[type[ProviderError], str]:
    """Which of ours a refusal is, and the word it goes by in reasons and cool-downs."""
    quota = _QUOTA.search(message)
    if quota:
        return QuotaError, f"{quota[2]}-quota"
    if _NO_LEASE.search(message):
        return CapacityError, "NoLease" if "lease" in message else "NoSpace"
    if code == ACTION and _NOT_NOW.search(message):
        return TransientError, WRONG_STATE
    if code == INTERNAL and _OUR_MISTAKE.search(message):
        return ProviderError, NAMES[code]
    if code == NO_EXISTS and "virtual machine [" in message:
        return InstanceNotFound, NAMES[code]
    right = _NO_RIGHT.search(message)
    if right and right[1] in ("USE", "CREATE"):
        # A template, image or network of others: another offer may do without it.
        return DeniedError, NAMES[AUTHORIZATION]
    if right and right[1] != "MANAGE":
        # A machine of ours that we may not manage is a locked one, and the account is all right.
        return AuthError, NAMES[AUTHORIZATION]
    kinds: dict[int, type[ProviderError]] = {
        AUTHENTICATION: AuthError,
        INTERNAL: TransientError,
        LOCKED: TransientError,
        REPLICATION: TransientError,
    }
    return kinds.get(code, ProviderError), NAMES.get(code, f"{code:#x}")


def is_refusal(error: ProviderError) -> bool:
    """Whether an order that ended so was surely not carried out."""
    return not isinstance(error, TransientError) or error.code in _NOT_CARRIED_OUT


def translated(cloud: str) -> AbstractContextManager[None]:
    """Raise one of ours for what a call raises inside; what is unknown stays as it is."""
    return translating(lambda error: _known(cloud, error), hidden=(NoCredentials,))


def _known(cloud: str, error: Exception) -> ProviderError | None:
    match error:
        case Refused():
            kind, word = classify(error.code, error.message)
            return kind(cloud, word, _METHOD.sub("", error.message))
        case NoCredentials():
            return AuthError(cloud, "NoCredentials", str(error))
        case xmlrpc.client.ProtocolError():
            # Oned answers 200 always: anything else is a proxy in between, or not oned at all.
            text = f"HTTP {error.errcode} {error.errmsg} from {error.url}"
            return kind_of(error.errcode)(cloud, f"HTTP{error.errcode}", text)
        case ssl.SSLCertVerificationError():
            return AuthError(cloud, "Certificate", error.verify_message)
    if isinstance(error, _NO_ANSWER):
        return TransientError(cloud, type(error).__name__, _sentence(error))
    return _strange(cloud, error)


def _strange(cloud: str, error: Exception) -> ProviderError | None:
    """A fault, which pyone turns into words, or an answer that is not what it should be."""
    foreign = type(error).__module__.partition(".")[0] in ("pyone", "lxml")
    fault = _FAULT.match(str(error)) if foreign else None
    if fault:
        return ProviderError(cloud, f"Fault{fault[1]}", fault[2])
    if foreign or isinstance(error, _BAD_ANSWER):
        text = f"the answer makes no sense: {type(error).__name__}: {_sentence(error)}"
        return TransientError(cloud, "BadAnswer", text)
    return None


def _sentence(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or "no message"
