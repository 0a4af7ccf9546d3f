import pytest


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    """Tests share their cores with each other, and tiny models gain nothing from threads."""
    import torch

    torch.set_num_threads(1)
