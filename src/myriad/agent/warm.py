"""Labels of images that are warm on this node, from what was proven here and what the kubelet still lists.

The module image_prewarm writes `warm.json` after it has started a container from each image, and a timer on the node
marks there what is gone. The kubelet's list on the Node comes sooner, but names the 50 largest images only: one that is
missing from a list that is not cut is gone. It lists a new image up to 40 seconds late (it asks the runtime every 30
and writes its status every 10), so what was proven just now needs no listing.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from myriad.agent.verdict import Kubelet
from myriad.fleet.derived_labels import label_value
from myriad.fleet.labels import warm_label

log = logging.getLogger("myriad.agent")

STATE = "var/lib/myriad/images/warm.json"
FRESH_S = 90.0


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


def warm_labels(proven: Mapping[str, Any], kubelet: Kubelet, now: datetime) -> dict[str, str]:
    """The labels that the Node has to carry: which image by the key, its name as the value. Pure."""
    listed = {name.rpartition("@")[2] for name in kubelet.images}
    labels = {}
    for digest, image in sorted(proven.items()):
        if not isinstance(image, Mapping) or not image.get("warm"):
            continue
        if kubelet.images_cut or digest in listed or _is_fresh(image, now):
            name = str(image.get("ref") or "").partition("@")[0].rpartition("/")[2]
            labels[warm_label(digest)] = label_value(name) or "unnamed"
    return labels


def _is_fresh(image: Mapping[str, Any], now: datetime) -> bool:
    try:
        proven_at = datetime.strptime(str(image.get("proven_at")), "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    except ValueError:
        return False
    return abs((now - proven_at).total_seconds()) < FRESH_S
