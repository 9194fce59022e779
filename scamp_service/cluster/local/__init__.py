"""The private Ray cluster of one host, and the connection to it or to another."""
