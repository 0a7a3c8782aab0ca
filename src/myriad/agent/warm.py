"""Labels of images that are warm on this node, from what was proven here and what the kubelet still lists.

The module image_prewarm writes `warm.json` after it has started a container from each image, and a timer on the node
marks there what is gone. The kubelet's list on the Node comes sooner, but names the 50 largest images only: one that is
missing from a list that is not cut is gone.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from myriad.agent.verdict import Kubelet
from myriad.fleet.labels import warm_label

log = logging.getLogger("myriad.agent")

STATE = "var/lib/myriad/images/warm.json"
VALUE = "true"


def read(root: Path) -> Mapping[str, Any]:
    """What was proven warm, by digest; nothing where no image was prewarmed, or the file cannot be read."""
    path = root / STATE
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        log.warning("%s cannot be read, so no image counts as warm: %s", path, error)
        return {}
    images = found.get("images") if isinstance(found, dict) else None
    return images if isinstance(images, dict) else {}


def warm_labels(proven: Mapping[str, Any], kubelet: Kubelet) -> dict[str, str]:
    """The labels that the Node has to carry. Pure."""
    listed = {name.rpartition("@")[2] for name in kubelet.images}
    return {
        warm_label(digest): VALUE
        for digest, image in sorted(proven.items())
        if isinstance(image, Mapping) and image.get("warm") and (kubelet.images_cut or digest in listed)
    }
