"""The errors of ``scamp.errors``, under the name by which the service and older programs import them."""

from scamp.errors import Conflict, Deposed, Forbidden, InvalidInput, NotFound, Refused, ScampError, Unavailable

__all__ = ["Conflict", "Deposed", "Forbidden", "InvalidInput", "NotFound", "Refused", "ScampError", "Unavailable"]
