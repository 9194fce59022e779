"""Exchanges between ranks: gradients of whole replicas, vectors of divided tables, heads of divided sequences."""
