"""One build of the golden image for all tests of this folder; MYRIAD_NODE_IMAGE names one that is there already."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from myriad.nodeimage.build import Built, Request, build
from myriad.nodeimage.definition import NodeImage, load_node_image
from myriad.nodeimage.manifest import load
from myriad.stack.build import build_bundle
from myriad.stack.bundle import Bundle
from myriad.stack.lock import load_lock
from myriad.stack.settings import read_settings

CLONE = Path(__file__).parents[3]
FOLDER = CLONE / "images" / "node-debian12"


@dataclass(frozen=True)
class Golden:
    """The image under test and what it was made from."""

    image: NodeImage
    folder: Path
    bundle: Bundle
    out: Path

    @property
    def disk(self) -> Path:
        return self.out / f"{self.image.name}.qcow2"

    def build(self, out: Path, work: Path) -> Built:
        request = Request(
            image=self.image,
            folder=self.folder,
            bundle=self.bundle,
            out=out,
            cache=read_settings().cache,
            work=work,
            on_step=lambda step: print(f"{step.stage}: {step.text} {step.seconds or ''}", flush=True),
        )
        return build(request)


@pytest.fixture(scope="session")
def site_bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """The bundle of the lock, as `myriad bundle build` makes it; one that MYRIAD_BUNDLE names where it is there."""
    given = os.environ.get("MYRIAD_BUNDLE")
    if given:
        return Bundle.load(Path(given))
    return build_bundle(load_lock(None), tmp_path_factory.mktemp("bundle"), read_settings(), lambda event: None)


@pytest.fixture(scope="session")
def golden(site_bundle: Bundle, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Golden]:
    """The golden image, built by packer; its disk is removed at the end unless it was given."""
    image = load_node_image(FOLDER)
    given = os.environ.get("MYRIAD_NODE_IMAGE")
    if given:
        yield Golden(image, FOLDER, site_bundle, Path(given))
        return
    made = Golden(image, FOLDER, site_bundle, tmp_path_factory.mktemp("golden"))
    made.build(made.out, tmp_path_factory.mktemp("work"))
    assert load(made.out).name == image.name
    yield made
    made.disk.unlink()
