"""Studies as a controller and ranks would have written them."""

from __future__ import annotations
