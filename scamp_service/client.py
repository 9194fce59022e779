"""The client of ``scamp.client``, under the name by which older programs import it."""

from scamp.client import Client, columns_of, trial_row

__all__ = ["Client", "columns_of", "trial_row"]
