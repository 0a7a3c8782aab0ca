"""The node that the tests of the driver share, and a vendor's mirror on it that they control."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from .node import FIXTURES, Node, driver_node

sys.path.insert(0, str(FIXTURES))

from debian import Deb, repository
from openpgp import Key
from vendor import PLACE, node_files

#: A kernel that no distribution has: what belongs to it was made by these tests.
MADE_KERNEL = "6.1.0-1-made"
MIRROR = "http://127.0.0.1:8099/"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with driver_node(tmp_path_factory.mktemp("node"), "vendor") as made:
        made.put(node_files({}, MADE_KERNEL))
        yield made


class Mirror:
    """The site's mirror of the vendor's repository: served over HTTP on the node, filled and signed by the test."""

    def __init__(self, node: Node, folder: Path) -> None:
        self._node = node
        self._keyring = folder / "vendor.asc"
        self.key = Key("NVIDIA CUDA (made by a test)")
        node.sh(
            f"mkdir -p {PLACE}/mirror && systemd-run --unit=made-mirror --working-directory={PLACE}/mirror "
            "python3 -m http.server 8099 --bind 127.0.0.1"
        )

    def serve(self, debs: Iterable[Deb], key: Key | None = None) -> None:
        """Replace the whole content, signed with this key."""
        self._node.sh(f"find {PLACE}/mirror -type f -delete")
        files = repository(debs, key or self.key)
        self._node.put({f"{PLACE}/mirror/{name}": content for name, content in files.items()})

    def inputs(self, key: Key | None = None, **more: Any) -> dict[str, Any]:
        """The role's inputs for this mirror, with the keyring of a key."""
        text = (key or self.key).public()
        self._keyring.write_text(text)
        return {
            "gpu_driver_channel": "vendor",
            "gpu_driver_kernel": MADE_KERNEL,
            "gpu_driver_load_modules": False,
            "gpu_driver_sysfs": f"{PLACE}/sys",
            "gpu_driver_procfs": f"{PLACE}/proc",
            "gpu_driver_mirror": {"vendor": MIRROR},
            "gpu_driver_keyring": str(self._keyring),
            "gpu_driver_keyring_sha256": hashlib.sha256(text.encode()).hexdigest(),
            **more,
        }


@pytest.fixture(scope="module")
def mirror(node: Node, tmp_path_factory: pytest.TempPathFactory) -> Mirror:
    return Mirror(node, tmp_path_factory.mktemp("mirror"))
