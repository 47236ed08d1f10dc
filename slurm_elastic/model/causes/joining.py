"""How a machine got Slurm's key, and how its own key for the tunnel is known."""

from __future__ import annotations

from slurm_elastic.model.causes.cause import Cause


class SecretBrought(Cause, frozen=True, kw_only=True):
    """The ``machine`` got the secret at its ``address``."""

    machine: str
    address: str

    @property
    def words(self) -> str:
        return f"{self.machine} at {self.address}"


class RegisteredWithSecret(Cause, frozen=True, kw_only=True):
    """The node has registered, so its ``machine`` has the secret, although the last try to bring it
    seemed to fail (``last_failure``).
    """

    machine: str
    last_failure: str

    @property
    def words(self) -> str:
        return f"{self.machine}: its node has registered; the last try failed: {self.last_failure}"


class KeyOnConsole(Cause, frozen=True, kw_only=True):
    """The ``machine`` has printed the key of this tunnel ``address`` on its console."""

    address: str
    machine: str

    @property
    def words(self) -> str:
        return f"{self.address}: {self.machine} has printed this key on its console"


class KeyOfHub(Cause, frozen=True, kw_only=True):
    """The hub still has the key of this tunnel ``address``, which the lost ledger had, too."""

    address: str

    @property
    def words(self) -> str:
        return (
            f"{self.address}: the hub still has this key, although the daemon's records (the"
            " ledger) were lost"
        )


class KeyBeforeStop(Cause, frozen=True, kw_only=True):
    """The machine had this key of the tunnel ``address`` before it was stopped."""

    address: str

    @property
    def words(self) -> str:
        return f"{self.address}: the machine had this key before it was stopped"


class KeyHandedIn(Cause, frozen=True, kw_only=True):
    """The key of this tunnel ``address`` came with the enrolment key that only its launch got."""

    address: str

    @property
    def words(self) -> str:
        return f"{self.address}: the machine handed it in with the enrolment key of its launch"


class KeyDoubted(Cause, frozen=True, kw_only=True):
    """A machine's key for the tunnel is not accepted because of a ``flaw``."""

    flaw: str

    @property
    def words(self) -> str:
        return f"its key is not believed: {self.flaw}"


TunnelKeySource = KeyOnConsole | KeyOfHub | KeyBeforeStop | KeyHandedIn
"""All ways in which the key of a machine may come."""

Joining = SecretBrought | RegisteredWithSecret | TunnelKeySource | KeyDoubted
"""All causes about the keys of machines, except ``KeyNotBrought``."""
