"""Translates oned's refusals, and errors on the way to it, into our errors.

The codes are from "XML-RPC API" of the OpenNebula documentation (``ErrorCode`` in RequestManager).
All quotas and some mistakes have the code of a missing right, so there the text decides (as in
6.10.5 and 7.4.0).
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
from slurm_elastic.base.one_line import one_line
from slurm_elastic.providers.base.errors import NoCredentials, translating
from slurm_elastic.providers.base.statuses import kind_of
from slurm_elastic.providers.opennebula.client import NotConnected, OneRefused

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
"""Temporary errors raised before anything is done. 503 comes from a proxy that reaches no oned (RFC
9110, section 15.6.4). 502 and 504 are missing here, because they mean that oned has not answered.
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
    """Our class for a refusal, and its code in reasons and cool-downs."""
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
        # The template, image or network belongs to others. Another offer may not need it.
        return DeniedError, NAMES[AUTHORIZATION]
    if right and right[1] != "MANAGE":
        # If we may not manage a machine of our own, it is locked. The account itself is fine, so
        # this is no AuthError.
        return AuthError, NAMES[AUTHORIZATION]
    kinds: dict[int, type[ProviderError]] = {
        AUTHENTICATION: AuthError,
        INTERNAL: TransientError,
        LOCKED: TransientError,
        REPLICATION: TransientError,
    }
    return kinds.get(code, ProviderError), NAMES.get(code, f"{code:#x}")


def is_refusal(error: ProviderError) -> bool:
    """Whether an order that raised this error was certainly not carried out."""
    return not isinstance(error, TransientError) or error.code in _NOT_CARRIED_OUT


def translated(cloud: str) -> AbstractContextManager[None]:
    """Raise our error for an exception raised inside. Unknown exceptions stay unchanged."""
    return translating(lambda error: _translate(cloud, error), hidden=(NoCredentials,))


def _translate(cloud: str, error: Exception) -> ProviderError | None:
    match error:
        case OneRefused():
            kind, code = classify(error.code, error.message)
            return kind(cloud, code, _METHOD.sub("", error.message))
        case NoCredentials():
            return AuthError(cloud, "NoCredentials", str(error))
        case xmlrpc.client.ProtocolError():
            # oned always answers 200. Any other status is from a proxy in between, or from a server
            # that is not oned.
            text = f"HTTP {error.errcode} {error.errmsg} from {error.url}"
            return kind_of(error.errcode)(cloud, f"HTTP{error.errcode}", text)
        case ssl.SSLCertVerificationError():
            return AuthError(cloud, "Certificate", error.verify_message)
    if isinstance(error, _NO_ANSWER):
        return TransientError(cloud, type(error).__name__, _sentence(error))
    return _translate_answer(cloud, error)


def _translate_answer(cloud: str, error: Exception) -> ProviderError | None:
    """The error for a fault, which pyone turns into text, or for a senseless answer."""
    is_from_pyone = type(error).__module__.partition(".")[0] in ("pyone", "lxml")
    fault = _FAULT.match(str(error)) if is_from_pyone else None
    if fault:
        return ProviderError(cloud, f"Fault{fault[1]}", fault[2])
    if is_from_pyone or isinstance(error, _BAD_ANSWER):
        text = f"the answer makes no sense: {type(error).__name__}: {_sentence(error)}"
        return TransientError(cloud, "BadAnswer", text)
    return None


def _sentence(error: BaseException) -> str:
    return one_line(str(error), 300) or "no message"
