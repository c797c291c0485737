"""The error tree. Callers act on the branch; people act on the message.

    RaygamError
    ├── Retryable        try again later: a busy store, a lagging worker
    │   ├── NotOwner     the partition is another shard's by now; ask who has it
    │   └── ModelAway    a chat model does not answer, or has too much to do
    │       └── TokensSpent  one tenant's tokens for it are used up for now
    ├── Fenced           another writer opened the partition; this one must stop
    ├── LeaseLost        the task is no longer this worker's; drop the proposal
    ├── Rejected         the input is wrong; it will be wrong again
    │   ├── TooLong      a request is longer than the chat model's context
    │   └── Unanswerable a chat model fails at a request, again and again, and answers others
    ├── BadAnswer        a chat model's answer does not fit its schema; ask again
    ├── Misconfigured    the settings or the state need a person
    │   ├── StateLocked  another engine holds the state
    │   └── Refused      a server does not take us by these settings; it may by and by
    └── Stale            the read is behind the position that was asked for

Every message says what happened, where, and what to do.
"""

from __future__ import annotations


class RaygamError(Exception):
    """Root of every error that raygam raises on purpose."""


class Retryable(RaygamError):
    """The same call may succeed later."""


class NotOwner(Retryable):
    """The shard that was asked does not have the partition; nothing was written."""


class ModelAway(Retryable):
    """A chat model gives no answer now; whoever waits for it loses nothing but time.

    Attributes:
        retry_after_seconds: what the server asks to wait; None if it does not say.
        at_work: it had the whole request in hand and broke down, so it may be for the request's sake.
    """

    def __init__(self, message: str, retry_after_seconds: float | None = None, *, at_work: bool = False) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds
        self.at_work = at_work


class TokensSpent(ModelAway):
    """The tenant's tokens are used up for now; other tenants are served."""


class Fenced(RaygamError):
    """A newer writer has opened the partition; nothing was written."""


class LeaseLost(RaygamError):
    """The lease expired or the task was finished by another; nothing was written."""


class Rejected(RaygamError):
    """The input breaks a documented rule and was not stored."""


class TooLong(Rejected):
    """A request and its answer do not fit into the chat model's context; it must be split."""


class Unanswerable(Rejected):
    """A chat model breaks down at a request, again and again, and answers those of others meanwhile."""


class BadAnswer(RaygamError):
    """A chat model's answer does not fit its schema. Nothing of it is stored; asked again, it may."""


class Misconfigured(RaygamError):
    """The settings contradict the state, the machine or each other."""


class StateLocked(Misconfigured):
    """Another engine is writing to this state."""


class Refused(Misconfigured):
    """A server answers, and not to these settings: address, password, right, a name that it does not know.

    Who uses settings for the first time tells a person and stops. Who was served by them before waits: a
    server that is ending or starting may look the same.
    """


class Stale(RaygamError):
    """The reader has not reached the position that the caller asked for.

    Attributes:
        position: the one that it has reached, None where it is not known.
    """

    def __init__(self, message: str, position: int | None = None) -> None:
        super().__init__(message)
        self.position = position
