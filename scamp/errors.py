"""Every error that ScaMP raises for a reason outside its own code. The message says what to do next.

ScampError
├── InvalidInput        a study, parameter or file cannot be accepted (HTTP 422, exit 2)
├── NotFound            no such study or trial (HTTP 404, exit 2)
├── Conflict            an idempotency key was reused for another body, or the state forbids the call (HTTP 409, exit 2)
├── Refused             unsafe without an API token, or the token is wrong (HTTP 401, exit 2)
│   └── Forbidden       whoever asks may not do this (HTTP 403, exit 2)
├── Unavailable         Ray, the database or the service cannot be reached (HTTP 503, exit 2)
└── Deposed             another controller leads; never shown to a user
"""

from __future__ import annotations


class ScampError(Exception):
    """Base of all errors of ScaMP. ``status`` is the HTTP status that the API answers with."""

    status = 500


class InvalidInput(ScampError):
    """A study, parameter or file that cannot be accepted."""

    status = 422


class NotFound(ScampError):
    """No study or trial with this id or number."""

    status = 404


class Conflict(ScampError):
    """The call contradicts the present state, such as an idempotency key that belongs to another study."""

    status = 409


class Refused(ScampError):
    """The request is unsafe without an API token, or its token is wrong."""

    status = 401


class Forbidden(Refused):
    """Whoever asks is known, but may not do this."""

    status = 403


class Unavailable(ScampError):
    """Ray, the database or the service cannot be reached now."""

    status = 503


class Deposed(ScampError):
    """Another controller has become the leader, so this one must not change anything any more."""
