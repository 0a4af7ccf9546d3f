"""Run a node: it trains on its own rows, and sends the weights of its part alone."""

from server.flower.client import spry_client

app = spry_client()
