"""The kubelet's device plugin protocol v1beta1, as messages that protobuf builds from the description below.

Field names and numbers are the wire contract of
https://github.com/kubernetes/kubelet/blob/master/pkg/apis/deviceplugin/v1beta1/api.proto
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PACKAGE = "v1beta1"
VERSION = "v1beta1"
HEALTHY, UNHEALTHY = "Healthy", "Unhealthy"

_Field = descriptor_pb2.FieldDescriptorProto

#: message -> fields as (name, number, type, repeated); a type that starts with a capital letter is a message here.
_MESSAGES: dict[str, list[tuple[str, int, str, bool]]] = {
    "Empty": [],
    "DevicePluginOptions": [
        ("pre_start_required", 1, "bool", False),
        ("get_preferred_allocation_available", 2, "bool", False),
    ],
    "RegisterRequest": [
        ("version", 1, "string", False),
        ("endpoint", 2, "string", False),
        ("resource_name", 3, "string", False),
        ("options", 4, "DevicePluginOptions", False),
    ],
    "NUMANode": [("ID", 1, "int64", False)],
    "TopologyInfo": [("nodes", 1, "NUMANode", True)],
    "Device": [("ID", 1, "string", False), ("health", 2, "string", False), ("topology", 3, "TopologyInfo", False)],
    "ListAndWatchResponse": [("devices", 1, "Device", True)],
    "PreStartContainerRequest": [("devices_ids", 1, "string", True)],
    "PreStartContainerResponse": [],
    "ContainerPreferredAllocationRequest": [
        ("available_deviceIDs", 1, "string", True),
        ("must_include_deviceIDs", 2, "string", True),
        ("allocation_size", 3, "int32", False),
    ],
    "PreferredAllocationRequest": [("container_requests", 1, "ContainerPreferredAllocationRequest", True)],
    "ContainerPreferredAllocationResponse": [("deviceIDs", 1, "string", True)],
    "PreferredAllocationResponse": [("container_responses", 1, "ContainerPreferredAllocationResponse", True)],
    "ContainerAllocateRequest": [("devices_ids", 1, "string", True)],
    "AllocateRequest": [("container_requests", 1, "ContainerAllocateRequest", True)],
    # The map `envs` is, on the wire, a list of entries with a key and a value.
    "DeviceSpec": [
        ("container_path", 1, "string", False),
        ("host_path", 2, "string", False),
        ("permissions", 3, "string", False),
    ],
    "CDIDevice": [("name", 1, "string", False)],
    "ContainerAllocateResponse": [
        ("envs", 1, "ContainerAllocateResponse.EnvsEntry", True),
        ("devices", 3, "DeviceSpec", True),
        ("cdi_devices", 5, "CDIDevice", True),
    ],
    "AllocateResponse": [("container_responses", 1, "ContainerAllocateResponse", True)],
}

_SCALARS = {
    "bool": _Field.TYPE_BOOL,
    "string": _Field.TYPE_STRING,
    "int32": _Field.TYPE_INT32,
    "int64": _Field.TYPE_INT64,
}


def _build() -> dict[str, Callable[..., Any]]:
    file = descriptor_pb2.FileDescriptorProto(name="myriad_lab_deviceplugin.proto", package=PACKAGE, syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        if name == "ContainerAllocateResponse":
            entry = message.nested_type.add(name="EnvsEntry")
            entry.options.map_entry = True
            for number, key in enumerate(("key", "value"), start=1):
                entry.field.add(name=key, number=number, type=_Field.TYPE_STRING, label=_Field.LABEL_OPTIONAL)
        for field_name, number, kind, repeated in fields:
            label = _Field.LABEL_REPEATED if repeated else _Field.LABEL_OPTIONAL
            field = message.field.add(name=field_name, number=number, label=label)
            if kind in _SCALARS:
                field.type = _SCALARS[kind]
            else:
                field.type = _Field.TYPE_MESSAGE
                field.type_name = f".{PACKAGE}.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}")) for name in _MESSAGES
    }


_CLASSES = _build()


def message(name: str, /, **values: Any) -> Any:
    """A new message of this name with these field values."""
    return _CLASSES[name](**values)


def decoder(name: str) -> Callable[[bytes], Any]:
    """Bytes to a message of this name."""
    return _CLASSES[name].FromString  # type: ignore[attr-defined, no-any-return]


def encode(value: Any) -> bytes:
    """A message to bytes."""
    return bytes(value.SerializeToString())
