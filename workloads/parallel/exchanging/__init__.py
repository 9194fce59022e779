"""All-to-alls between ranks: vectors of divided embedding tables, and heads of divided sequences."""
