"""The client of ``scamp.client``, under the name by which older programs import it."""

from scamp.client import Client
from scamp.export import columns_of, trial_row

__all__ = ["Client", "columns_of", "trial_row"]
