"""Every error that ScaMP raises for a reason outside its own code. The message says what to do next.

ScampError
├── InvalidInput        a study, parameter or file that cannot be accepted (HTTP 422, exit 2)
├── NotFound            no such study or trial (HTTP 404, exit 2)
├── Conflict            an idempotency key reused for another body, or a state that forbids the call (HTTP 409, exit 2)
├── Refused             unsafe without an API token, or the token is wrong (HTTP 401, exit 2)
└── Unavailable         Ray, the database or the service cannot be reached (HTTP 503, exit 2)
"""

from __future__ import annotations


class ScampError(Exception):
    status = 500


class InvalidInput(ScampError):
    status = 422


class NotFound(ScampError):
    status = 404


class Conflict(ScampError):
    status = 409


class Refused(ScampError):
    status = 401


class Unavailable(ScampError):
    status = 503
