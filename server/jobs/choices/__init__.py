"""List the choices of a new job: presets with their costs, and each setting with a line of help."""
