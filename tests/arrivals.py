"""A bundle as a server has it once all its files have come.

How they come over HTTP, are verified and are safe on the disk is tried in tests/server/storage/files/test_bundles.py,
tests/server/cli and by the commands; tests that only need a bundle there would spend half of their time on forty files.
"""

import hashlib
import shutil
from pathlib import Path

from edge_client.bundle.manifest import FILE_NAME
from server.storage.store import Store


def arrive(store: Store, folder: Path) -> str:
    """The bundle's name."""
    name = hashlib.sha256((folder / FILE_NAME).read_bytes()).hexdigest()
    shutil.copytree(folder, store.bundles.path(name), dirs_exist_ok=True)
    return name
