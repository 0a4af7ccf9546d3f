"""The federation server: devices, jobs, rounds and their storage, behind an HTTP API."""
