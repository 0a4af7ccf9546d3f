"""What people choose from when they start a job: presets with their costs, and each setting with a line of help."""
