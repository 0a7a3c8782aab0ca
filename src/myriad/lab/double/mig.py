"""Multi-instance GPUs of the doubles: modes, GPU instances and what a reset or a reboot does to them (pure).

Behaviour and numbers follow https://docs.nvidia.com/datacenter/tesla/mig-user-guide/ (getting started with MIG):
instances never survive a reset or a reboot; the mode survives a reboot on Ampere (a bit in the InfoROM) and does not
from Hopper on; an Ampere GPU must be reset for its mode to change, which fails while somebody uses it.
"""

from __future__ import annotations

import uuid
from typing import Any

from myriad.lab.double.document import faulty, value_of

Document = dict[str, Any]

#: Compute instance profile that spans a whole GPU instance, by its compute slices.
_COMPUTE_PROFILE = {1: 0, 2: 1, 3: 2, 4: 3, 7: 4}
#: First GPU instance id, by the memory slices of the instance.
_FIRST_ID = {8: 0, 4: 1, 2: 3, 1: 7}


class MigError(Exception):
    """What the driver refuses, with nvidia-smi's words and exit code."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.text = text
        self.code = code


def mode(document: Document, index: int) -> tuple[str, str]:
    """(current, pending) mode of a GPU: Enabled, Disabled, or N/A where the model has no MIG."""
    if not document.get("mig_profiles"):
        return "N/A", "N/A"
    state = document.get("mig", {}).get(str(index), {})
    return state.get("current", "Disabled"), state.get("pending", "Disabled")


def instances(document: Document, index: int) -> list[Document]:
    """GPU instances of a GPU by their place, each with gi, profile (its whole entry) and start."""
    known = {profile["name"]: profile for profile in document.get("mig_profiles", [])}
    found = document.get("mig", {}).get(str(index), {}).get("instances", [])
    return sorted(
        ({**instance, "profile": known[instance["profile"]]} for instance in found if instance["profile"] in known),
        key=lambda instance: (instance["gi"], instance["start"]),
    )


def devices(document: Document, gpu: Document) -> list[Document]:
    """MIG devices of a GPU in the order of nvidia-smi -L: index, gi, ci, profile, uuid. Instances without a compute
    instance are no devices."""
    ready = [instance for instance in instances(document, gpu["index"]) if instance.get("ci", True)]
    return [
        {
            **instance,
            "index": number,
            "ci": 0,
            "uuid": "MIG-" + str(uuid.uuid5(uuid.UUID(gpu["uuid"][4:]), f"{instance['gi']}/0")),
        }
        for number, instance in enumerate(ready)
    ]


def is_enabled(document: Document, index: int) -> bool:
    """Whether a GPU is in MIG mode now."""
    return mode(document, index)[0] == "Enabled"


def _with(document: Document, index: int, **changes: Any) -> Document:
    current, pending = mode(document, index)
    state = {"current": current, "pending": pending, "instances": [], **document.get("mig", {}).get(str(index), {})}
    return {**document, "mig": {**document.get("mig", {}), str(index): {**state, **changes}}}


def set_mode(document: Document, gpu: Document, *, on: bool, busy: bool) -> tuple[Document, str]:
    """Ask for a mode. As the real program it ends well even when the mode only becomes pending.

    Args:
        document: the present content.
        gpu: the GPU.
        on: whether MIG is to be enabled.
        busy: whether another client has the GPU open.

    Raises:
        MigError: the model has no MIG.
    """
    index, bus = gpu["index"], gpu["bus_id"]
    word, verb = ("Enabled", "enable") if on else ("Disabled", "disable")
    if not document.get("mig_profiles"):
        raise MigError(
            f"Unable to {verb} MIG Mode for GPU {bus}: Not Supported\nTreating as warning and moving on.\n", 3
        )
    if mode(document, index)[0] == word:
        return _with(document, index, pending=word), f"{word} MIG Mode for GPU {bus}\n"
    held = value_of(document, "mig_pending")
    if held is not None:
        said = (
            f"Warning: MIG mode is in pending {verb} state for GPU {bus}:Not Supported\n"
            f"Reboot the system or try nvidia-smi --gpu-reset to make MIG mode effective on GPU {bus}\n"
        )
        return _with(document, index, pending=word), said
    if busy:
        said = (
            f"Warning: MIG mode is in pending {verb} state for GPU {bus}:In use by another client\n"
            f"{bus} is currently being used by one or more other processes (e.g. CUDA application or a monitoring "
            "application such as another instance of nvidia-smi). Please first kill all processes using the device and "
            "retry the command or reboot the system to make MIG mode effective.\n"
        )
        return _with(document, index, pending=word), said
    return _with(document, index, current=word, pending=word, instances=[]), f"{word} MIG Mode for GPU {bus}\n"


def profile_of(document: Document, text: str) -> Document:
    """A profile by id or by name, with or without "MIG ".

    Raises:
        MigError: there is none.
    """
    name = text.strip().removeprefix("MIG ").strip()
    for profile in document.get("mig_profiles", []):
        if name in (profile["name"], str(profile["id"])):
            return dict(profile)
    raise MigError(f"Invalid GPU instance profile {text}: Invalid Argument\n", 2)


def place(document: Document, index: int, profile: Document) -> int | None:
    """Where the driver puts one more instance: the first free place of its own order; None where it does not fit."""
    taken: set[int] = set()
    slices = 0
    for instance in instances(document, index):
        taken |= set(range(instance["start"], instance["start"] + instance["profile"]["size"]))
        slices += instance["profile"]["slices"]
    whole = max((entry["slices"] for entry in document["mig_profiles"]), default=7)
    if slices + profile["slices"] > whole:
        return None
    same = sum(instance["profile"]["name"] == profile["name"] for instance in instances(document, index))
    if same >= profile["total"]:
        return None
    for start in profile["starts"]:
        if not taken & set(range(start, start + profile["size"])):
            return int(start)
    return None


def create(document: Document, gpu: Document, wanted: list[str], *, compute: bool) -> tuple[Document, str]:
    """Create GPU instances in the order given, with their compute instances if asked.

    Raises:
        MigError: the first one that does not fit; those before it stay, as with the real driver (a PartialError).
    """
    index = gpu["index"]
    if not is_enabled(document, index):
        raise MigError("No MIG-enabled devices found.\n", 6)
    text = ""
    for number, name in enumerate(wanted, start=1):
        profile = profile_of(document, name)
        start = place(document, index, profile)
        if number == len(wanted) and index in faulty(document, "mig_refused"):
            start = None
        if start is None:
            refusal = PartialError(
                f"{text}Unable to create a GPU instance on GPU {index:2d} using profile {profile['id']}: "
                "Insufficient Resources\nFailed to create GPU instances: Insufficient Resources\n",
                23,
            )
            refusal.document = document
            raise refusal
        gi = _FIRST_ID[profile["size"]] + start // profile["size"]
        entry = {"gi": gi, "profile": profile["name"], "start": start, "ci": compute}
        known = document.get("mig", {}).get(str(index), {}).get("instances", [])
        document = _with(document, index, instances=[*known, entry])
        text += (
            f"Successfully created GPU instance ID {gi:2d} on GPU {index:2d} using profile MIG {profile['name']} "
            f"(ID {profile['id']:2d})\n"
        )
        if compute:
            text += created_compute(index, gi, profile)
    return document, text


class PartialError(MigError):
    """A creation that stopped on the way; `document` holds what was made before."""

    document: Document


def created_compute(index: int, gi: int, profile: Document) -> str:
    """What nvidia-smi says about a compute instance that spans its GPU instance."""
    number = _COMPUTE_PROFILE.get(profile["slices"], 0)
    return (
        f"Successfully created compute instance ID  0 on GPU {index:2d} GPU instance ID {gi:2d} "
        f"using profile MIG {profile['name']} (ID {number:2d})\n"
    )


def create_compute(document: Document, gpu: Document) -> tuple[Document, str]:
    """A compute instance in every GPU instance that has none."""
    index, text, changed = gpu["index"], "", []
    for instance in instances(document, index):
        if not instance.get("ci", True):
            text += created_compute(index, instance["gi"], instance["profile"])
        changed.append({**instance, "profile": instance["profile"]["name"], "ci": True})
    return _with(document, index, instances=changed), text


def destroy(
    document: Document, gpu: Document, *, busy: bool, compute_only: bool, only: set[int] | None = None
) -> tuple[Document, str]:
    """Destroy compute instances, or GPU instances.

    Raises:
        MigError: nothing is there, an instance is used, or a GPU instance still has its compute instance.
    """
    index = gpu["index"]
    found = [entry for entry in instances(document, index) if only is None or entry["gi"] in only]
    if compute_only:
        found = [entry for entry in found if entry.get("ci", True)]
    kind = "compute" if compute_only else "GPU"
    if not found:
        raise MigError(f"No {kind} instances found: Not Found\n", 6)
    text = ""
    for entry in found:
        where = f"GPU instance ID {entry['gi']:2d} from GPU {index:2d}"
        if busy or (not compute_only and entry.get("ci", True)):
            if compute_only:
                where = f"compute instance ID  0 from GPU {index:2d} GPU instance ID {entry['gi']:2d}"
            raise MigError(f"{text}Unable to destroy {where}: In use by another client\n", 19)
        text += (
            f"Successfully destroyed compute instance ID  0 from GPU {index:2d} GPU instance ID {entry['gi']:2d}\n"
            if compute_only
            else f"Successfully destroyed {where}\n"
        )
    ids = {entry["gi"] for entry in found}
    kept = [
        {**entry, "profile": entry["profile"]["name"], **({"ci": False} if entry["gi"] in ids else {})}
        for entry in instances(document, index)
        if compute_only or entry["gi"] not in ids
    ]
    return _with(document, index, instances=kept), text


def reset(document: Document, gpu: Document, *, busy: bool) -> tuple[Document, str]:
    """Reset a GPU: instances go, a pending mode and a pending row remapping take effect.

    Raises:
        MigError: it is used, or its mode waits for a reboot.
    """
    index, bus = gpu["index"], gpu["bus_id"]
    if value_of(document, "mig_pending") == "reboot":
        raise MigError(f"Resetting GPU {bus} is not supported.\n", 3)
    if busy:
        raise MigError(f"GPU {bus} is currently in use by another process.\n", 19)
    healed = [
        fault
        for fault in document["faults"]
        if not (
            fault.get("gpu") == index and fault["kind"] == "row_remap" and fault.get("value", "pending") == "pending"
        )
    ]
    _, pending = mode(document, index)
    document = {**document, "faults": healed}
    if pending != "N/A" and str(index) in document.get("mig", {}):
        document = _with(document, index, current=pending, pending=pending, instances=[])
    return document, f"GPU {bus} was successfully reset.\n"


def reboot(document: Document) -> Document:
    """What a reboot leaves: no instance; the mode on Ampere, and wherever a change of it waited for the reboot."""
    healed = [
        fault
        for fault in document["faults"]
        if not (fault["kind"] == "row_remap" and fault.get("value", "pending") == "pending")
    ]
    waited = value_of(document, "mig_pending") is not None
    document = {**document, "faults": healed}
    for gpu in document["gpus"]:
        if str(gpu["index"]) in document.get("mig", {}):
            _, pending = mode(document, gpu["index"])
            kept = pending if waited or gpu.get("architecture") == "Ampere" else "Disabled"
            document = _with(document, gpu["index"], current=kept, pending=kept, instances=[])
    return document
