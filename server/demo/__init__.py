"""`spry demo`: a fleet on one machine, from the export to the adapter."""
