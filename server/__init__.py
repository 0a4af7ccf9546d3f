"""The server: rounds, aggregation, storage and the fleet simulator."""
