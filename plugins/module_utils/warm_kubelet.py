"""What the kubelet of a node is told about images, and whether it will keep one that is pinned. Pure but for `read`."""

from __future__ import annotations

import glob
import os
import re

# Where kubeadm writes it, and where drop-ins lie when the kubelet is started with --config-dir.
CONFIG = "/var/lib/kubelet/config.yaml"
DROP_INS = "/etc/kubernetes/kubelet.conf.d"

# Since when a runtime reports `pinned` for an image that was labelled by others, by the release branch:
# https://github.com/containerd/containerd/pull/9381 and /9382; 2.0 and later have it.
CONTAINERD_PINS = {(1, 6): (1, 6, 25), (1, 7): (1, 7, 10)}
# Since when the kubelet spares pinned images: https://github.com/kubernetes/kubernetes/pull/119986. In 1.25 to 1.28 it
# came with a patch release.
KUBELET_PINS = (1, 29)
KUBELET_PINS_PATCHED = (1, 25)


def read(root="/"):
    """The kubelet's settings of this node; None where none runs on it."""
    path = os.path.join(root, CONFIG.lstrip("/"))
    if not os.path.exists(path):
        return None
    settings = {}
    for name in [path, *sorted(glob.glob(os.path.join(root, DROP_INS.lstrip("/"), "*.conf")))]:
        with open(name, encoding="utf-8") as stream:
            merge(settings, parse(stream.read()))
    return settings


def merge(settings, more):
    """Add a drop-in as the kubelet does: mappings key by key, all else as a whole."""
    for key, value in more.items():
        if isinstance(value, dict) and isinstance(settings.get(key), dict):
            settings[key].update(value)
        else:
            settings[key] = value


def parse(text):
    """Settings of a KubeletConfiguration: scalars, and mappings of scalars. Other values are passed over.

    A node need not have a YAML library. The file is written by programs in block style, two spaces a level, and what is
    wanted of it are numbers, words and one mapping.
    """
    settings = {}
    inside = None
    for line in text.splitlines():
        bare = line.split(" #", 1)[0].rstrip()
        if not bare or bare.lstrip().startswith("#") or bare.startswith(("---", "- ")):
            continue
        indent = len(bare) - len(bare.lstrip())
        key, colon, value = bare.strip().partition(": ") if ": " in bare.strip() else bare.strip().partition(":")
        if not colon:
            continue
        key, value = _scalar(key), value.strip()
        if indent == 0:
            inside = None
            if value.startswith("{") and value.endswith("}"):
                pairs = (pair.partition(":") for pair in value[1:-1].split(",") if ":" in pair)
                settings[key] = {_scalar(name): _scalar(item) for name, _, item in pairs}
            elif value:
                settings[key] = _scalar(value)
            else:
                inside = settings.setdefault(key, {}) if isinstance(settings.get(key, {}), dict) else None
        elif inside is not None and value:
            inside[key] = _scalar(value)
    return {key: value for key, value in settings.items() if value != {}}


def _scalar(text):
    text = text.strip()
    if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'":
        return text[1:-1]
    if text in ("true", "false"):
        return text == "true"
    return int(text) if re.fullmatch(r"-?[0-9]{1,15}", text) else text


def version(text):
    """The numbers of a version: `v1.35.4+build` is (1, 35, 4); () where there are none."""
    match = re.search(r"(\d+)\.(\d+)(?:\.(\d+))?", str(text or ""))
    return tuple(int(part) for part in match.groups(default="0")) if match else ()


def audit(kubelet, *, kubelet_version="", containerd_version="", pinned=True):
    """Whether this node will keep an image that no pod uses.

    Args:
        kubelet: its settings; None where none runs.
        kubelet_version, containerd_version: as they print themselves; empty where not known.
        pinned: whether the runtime reports the image as pinned: the last word, whatever the versions promise.

    Returns:
        `kept` (True, False, or None where it cannot be told) and `sentences`, the reason first.
    """
    if kubelet is None:
        return {"kept": True, "sentences": ["no kubelet runs here, so nobody collects images"]}
    high = kubelet.get("imageGCHighThresholdPercent", 85)
    low = kubelet.get("imageGCLowThresholdPercent", 80)
    least = kubelet.get("imageMinimumGCAge", "2m")
    oldest = kubelet.get("imageMaximumGCAge", "0s")
    rule = (
        "the kubelet deletes unused images that are not pinned, the longest unused first, once the disk is "
        f"{high} % full, down to {low} % (imageGCHighThresholdPercent, imageGCLowThresholdPercent; none younger than "
        f"{least})"
    )
    sentences = []
    kept = True
    if not pinned:
        kept = None if _is_never(high) else False
        sentences.append(f"the image is not pinned, and {rule}; under disk pressure it deletes all of them")
        if _seconds(oldest):
            kept = False
            sentences.append(
                f"imageMaximumGCAge is {oldest}: an image that no pod used for that long goes, full disk or not"
            )
    else:
        sentences.append(f"the image is pinned; {rule}")
        if _seconds(oldest):
            sentences.append(f"imageMaximumGCAge is {oldest}; a pinned image is spared by it too")
    runtime = version(containerd_version)
    floor = CONTAINERD_PINS.get(runtime[:2]) if runtime else None
    if runtime and (runtime < (1, 6) or (floor and runtime < floor)):
        kept = False
        least_good = ".".join(str(part) for part in floor or CONTAINERD_PINS[(1, 6)])
        sentences.insert(
            0,
            f"containerd {containerd_version} loses the pin of an image that was labelled from outside; "
            f"{least_good} keeps it",
        )
    agent = version(kubelet_version)
    if agent and agent[:2] < KUBELET_PINS_PATCHED:
        kept = False
        sentences.insert(0, f"kubelet {kubelet_version} does not know pinned images; 1.29 does")
    elif agent and agent[:2] < KUBELET_PINS:
        kept = None if kept else kept
        sentences.insert(
            0,
            f"kubelet {kubelet_version}: only later patch releases of this minor spare pinned images "
            "(kubernetes#119986); 1.29 does",
        )
    # KEP 2535: of images that the kubelet did not pull itself it has no record of credentials.
    policy = kubelet.get("imagePullCredentialsVerificationPolicy")
    if policy in ("AlwaysVerify", "NeverVerifyAllowlistedImages"):
        sentences.append(
            f"imagePullCredentialsVerificationPolicy is {policy}: a pod has to show the registry's credentials for an "
            "image that is here already, or the kubelet asks the registry again"
        )
    if isinstance(high, int) and isinstance(low, int) and low >= high:
        sentences.append(
            f"imageGCLowThresholdPercent {low} is not below imageGCHighThresholdPercent {high}: "
            "the kubelet refuses to start"
        )
    return {"kept": kept, "sentences": sentences}


def _is_never(high):
    return high == 100


def _seconds(text):
    """Whether a Go duration is more than nothing."""
    return any(float(number) for number in re.findall(r"[0-9]+(?:\.[0-9]+)?", str(text or "0")))
