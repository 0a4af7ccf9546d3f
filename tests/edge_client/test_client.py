"""Clients of the real server, in this process: rounds of both modes from enrolment to prediction."""
