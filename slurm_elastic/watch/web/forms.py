"""Tokens of forms: each session of a user has a token, and each preview has a token for one use."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import ClassVar, Generic, TypeVar

from msgspec import Struct

from slurm_elastic.base.errors import SlurmElasticError
from slurm_elastic.base.guards import Guarded, GuardedBy
from slurm_elastic.base.units import brief

MAX_AGE_S = 600.0
"""A preview can be confirmed for so long."""
MAX_FORMS, MAX_FORMS_OF_USER = 1000, 16
MAX_TAKEN = 4096
"""We remember so many used tokens, so that the page can say that a form was sent before."""
RATE, RATE_WINDOW_S = 30, 60.0
"""A user may send so many forms in each window."""
MAX_USERS = 4096

T = TypeVar("T")


class StaleFormError(SlurmElasticError):
    """The form was used before, or is too old."""


class SessionTokens:
    """Binds forms to a browser's session (its cookie) and to a user."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)

    @staticmethod
    def new_session() -> str:
        return secrets.token_urlsafe(24)

    def token(self, session: str, uid: int) -> str:
        """The token in the forms of one browser and user."""
        return hmac.new(self._key, f"{uid} {session}".encode(), hashlib.sha256).hexdigest()

    def fits(self, token: str, session: str, uid: int) -> bool:
        """Whether the forms of this browser and user have this token."""
        return bool(session) and hmac.compare_digest(
            token.encode(), self.token(session, uid).encode()
        )


class _Form(Struct, frozen=True):
    uid: int
    expires_at: float
    value: object


class OneTimeForms(Generic[T]):
    """Values that wait for a confirmation, by a token that can be used once. Thread-safe.

    The values stay here, so that no browser can change them.
    """

    guarded_by: ClassVar[GuardedBy] = {"_lock": Guarded("_forms", "_taken")}

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._forms: OrderedDict[str, _Form] = OrderedDict()
        self._taken: deque[str] = deque(maxlen=MAX_TAKEN)

    def issue(self, uid: int, value: T) -> str:
        """Keep the value; return its token. A user's oldest values make room for newer ones."""
        token = secrets.token_urlsafe(24)
        with self._lock:
            tokens = [name for name, form in self._forms.items() if form.uid == uid]
            for name in tokens[: max(len(tokens) - MAX_FORMS_OF_USER + 1, 0)]:
                del self._forms[name]
            while len(self._forms) >= MAX_FORMS:
                self._forms.popitem(last=False)
            self._forms[token] = _Form(uid, self._now() + MAX_AGE_S, value)
        return token

    def take(self, token: str, uid: int) -> T:
        """Return the user's value of this token, and forget it. StaleFormError if there is none."""
        with self._lock:
            form = self._forms.get(token)
            if form is not None and form.uid == uid and self._now() < form.expires_at:
                del self._forms[token]
                self._taken.append(token)
                return form.value  # type: ignore[return-value]
            was_taken = token in self._taken
        if was_taken:
            raise StaleFormError("this form was sent before; nothing was done a second time")
        raise StaleFormError(
            f"this form is older than {brief(MAX_AGE_S)}, or the page has restarted since; nothing "
            "was done"
        )


class Rates:
    """How often each user has sent a form. Thread-safe."""

    guarded_by: ClassVar[GuardedBy] = {"_lock": Guarded("_sent_at")}

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._sent_at: OrderedDict[int, deque[float]] = OrderedDict()

    def is_over(self, uid: int) -> bool:
        """Count a form of the user. Return whether the user has sent too many."""
        now = self._now()
        with self._lock:
            sent_at = self._sent_at.setdefault(uid, deque(maxlen=RATE))
            self._sent_at.move_to_end(uid)
            if len(self._sent_at) > MAX_USERS:
                self._sent_at.popitem(last=False)
            if len(sent_at) == RATE and now - sent_at[0] < RATE_WINDOW_S:
                return True
            sent_at.append(now)
            return False
