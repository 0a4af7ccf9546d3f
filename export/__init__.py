"""From a Hugging Face model to a verified bundle of forward-mode programs; runs on a workstation."""
