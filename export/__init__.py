"""Export a Hugging Face model to a verified bundle of forward-mode programs, on a workstation."""
