"""A folder on a hub of models, by the hub's own client."""

from __future__ import annotations

from pathlib import Path

from edge_client.checkpoints import silent_hub
from edge_client.distribution import install_command
from server.cli.connection import AdminError


def push_folder(folder: Path, repository: str, message: str, *, private: bool) -> str:
    """Make the repository where there is none, and send what is in the folder; gives a line with its address.

    The token is the one that the client finds: `hf auth login`, or the variable HF_TOKEN.
    """
    try:
        from huggingface_hub import HfApi
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalTokenNotFoundError
    except ImportError as error:
        raise AdminError(f"a push needs the hub's client ({error}): {install_command('hub')}") from None
    if silent := silent_hub():
        raise AdminError(
            f"the hub {silent} cannot be reached, so nothing is pushed: download it, and where it can be reached "
            f"`hf upload {repository} FOLDER`"
        )
    api = HfApi()
    try:
        made = api.create_repo(repository, private=private, exist_ok=True)
        api.upload_folder(repo_id=made.repo_id, folder_path=folder, commit_message=message)
    except (HfHubHTTPError, HFValidationError, LocalTokenNotFoundError, OSError) as error:
        first = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise AdminError(
            f"the hub did not take {repository} ({first}); is it yours, and are you logged in (hf auth login)?"
        ) from None
    return f"pushed to {made}"
