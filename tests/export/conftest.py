import pytest


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    """Tests share their cores with each other, and tiny models gain nothing from threads."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _traces_of_its_own(request):
    """A test that changes what tracing depends on neither finds traces nor leaves any."""
    if "monkeypatch" in request.fixturenames:
        from export.dual import builder

        request.getfixturevalue("monkeypatch").setattr(builder, "_traced", {})
