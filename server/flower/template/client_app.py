"""A node: it trains on its own rows, and tells the weights of its part alone."""

from server.flower.client import spry_client

app = spry_client()
