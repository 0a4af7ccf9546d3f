"""The administrators' commands; all but `spry serve` talk to the HTTP API."""
