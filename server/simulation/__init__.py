"""The fleet simulator: many clients in one process, and reports on its runs."""
