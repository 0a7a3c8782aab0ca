"""Which running pods hold devices of this node, and which of them a `systemctl daemon-reload` would cost their devices.

The kubelet notes every allocation of a device plugin in its checkpoint, with the plugin's answer. The answer tells how
the container got its devices: by CDI or as device specs, which runc and systemd know of, or by an environment variable
that a hook acts on behind their back. systemd takes those last ones away when it reloads
(https://github.com/NVIDIA/nvidia-container-toolkit/issues/48).
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import subprocess

CHECKPOINT = "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint"
CRICTL = "/usr/local/bin/crictl"
# Fields of ContainerAllocateResponse, k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1/api.proto.
DEVICES, ANNOTATIONS, CDI_DEVICES = 3, 4, 5


class Holder:
    """One container of a running pod that holds devices.

    Attributes:
        pod: namespace/name, or the pod's UID where the runtime does not tell.
        resource: as ``nvidia.com/gpu``.
        count: how many devices.
        exposed: whether a daemon-reload of systemd would take them away.
    """

    def __init__(self, pod, resource, count, exposed):
        self.pod, self.resource, self.count, self.exposed = pod, resource, count, exposed

    def __str__(self):
        return f"{self.pod} ({self.count} {self.resource})"


def holders(root="/"):
    """Containers of running pods that hold devices; empty where no kubelet has handed any out."""
    path = os.path.join(root, CHECKPOINT.lstrip("/"))
    try:
        with open(path, encoding="utf-8") as stream:
            entries = (json.load(stream).get("Data") or {}).get("PodDeviceEntries") or []
    except FileNotFoundError:
        return []
    except (OSError, ValueError, AttributeError):
        # It cannot be read, so nobody can tell that the node is free.
        return [Holder(f"unknown pods ({path} cannot be read)", "devices", 1, True)]
    if not entries:
        return []
    running = pods()
    found = []
    for entry in entries:
        uid = entry.get("PodUID", "")
        if running is not None and uid not in running:
            continue  # The kubelet forgets an ended pod only after a while.
        name = (running or {}).get(uid) or f"pod {uid}"
        count = sum(len(ids) for ids in (entry.get("DeviceIDs") or {}).values())
        found.append(
            Holder(name, entry.get("ResourceName", "devices"), count, is_exposed(entry.get("AllocResp"), root))
        )
    return sorted(found, key=str)


def pods():
    """namespace/name of each pod whose sandbox is ready, by UID; None when the runtime does not answer."""
    try:
        done = subprocess.run(
            [CRICTL, "--timeout", "5s", "pods", "--state", "Ready", "-o", "json"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
        items = json.loads(done.stdout)["items"] if done.returncode == 0 else None
    except (OSError, ValueError, KeyError, subprocess.TimeoutExpired):
        return None
    if items is None:
        return None
    return {
        item["metadata"]["uid"]: "{}/{}".format(item["metadata"]["namespace"], item["metadata"]["name"])
        for item in items
    }


def is_exposed(response, root="/"):
    """Whether a container's devices are unknown to runc and systemd.

    Args:
        response: the device plugin's answer, base64 of a ContainerAllocateResponse.
    """
    try:
        fields = message_fields(base64.b64decode(response or "", validate=True))
    except (binascii.Error, ValueError):
        return True
    if fields.get(CDI_DEVICES) or any(b"cdi.k8s.io/" in entry for entry in fields.get(ANNOTATIONS, [])):
        return False
    specs = fields.get(DEVICES, [])
    # systemd finds a device node by /dev/char/MAJOR:MINOR; without the link it refuses it after a reload.
    return not specs or not all(has_char_link(spec, root) for spec in specs)


def has_char_link(spec, root):
    host_path = (message_fields(spec).get(2) or [b""])[0].decode("utf-8", "replace")
    try:
        number = os.stat(os.path.join(root, host_path.lstrip("/"))).st_rdev
    except OSError:
        return False
    return os.path.lexists(os.path.join(root, f"dev/char/{os.major(number)}:{os.minor(number)}"))


def message_fields(data):
    """Length-delimited fields of a protobuf message by number; the few messages read here have no others but bools.

    Raises:
        ValueError: it is no such message.
    """
    found, position = {}, 0
    while position < len(data):
        tag, position = varint(data, position)
        number, wire = tag >> 3, tag & 7
        if wire == 0:
            _value, position = varint(data, position)
            continue
        if wire != 2:
            raise ValueError(f"wire type {wire}")
        length, position = varint(data, position)
        if position + length > len(data):
            raise ValueError("it ends in a field")
        found.setdefault(number, []).append(data[position : position + length])
        position += length
    return found


def varint(data, position):
    value = shift = 0
    while position < len(data):
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    raise ValueError("it ends in a number")
