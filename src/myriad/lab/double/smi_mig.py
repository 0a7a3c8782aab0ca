"""nvidia-smi mig: lists, creates and destroys GPU instances, in the tables and sentences of the real program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from myriad.lab.double import mig
from myriad.lab.double.smi_text import Failure

Document = dict[str, Any]
Choose = Callable[[list[Document], "str | None"], "list[Document]"]

_LISTS = {
    "-lgip": "profiles", "--list-gpu-instance-profiles": "profiles",
    "-lgipp": "placements", "--list-gpu-instance-possible-placements": "placements",
    "-lgi": "instances", "--list-gpu-instances": "instances",
    "-lci": "compute", "--list-compute-instances": "compute",
}  # fmt: skip
_CHANGES = {
    "-cgi": "create", "--create-gpu-instance": "create",
    "-cci": "create-compute", "--create-compute-instance": "create-compute",
    "-dci": "destroy-compute", "--destroy-compute-instance": "destroy-compute",
    "-dgi": "destroy", "--destroy-gpu-instance": "destroy",
}  # fmt: skip


def run(
    arguments: list[str], document: Document, gpus: list[Document], *, busy: bool, choose: Choose
) -> tuple[str, Document]:
    """The text for `nvidia-smi mig ARGUMENTS`, and the document afterwards.

    Raises:
        Failure: as the real program refuses.
    """
    verb, wanted, profiles, only, compute = "", None, [], None, False
    words = list(arguments)
    while words:
        word = words.pop(0)
        if word in ("-i", "--id") and words:
            wanted = words.pop(0)
        elif word in ("-gi", "--gpu-instance-id") and words:
            only = {int(part) for part in words.pop(0).split(",")}
        elif word in ("-ci", "--compute-instance-id") and words:
            words.pop(0)
        elif word in ("-C", "--default-compute-instance"):
            compute = True
        elif word in _LISTS or word in _CHANGES:
            verb = _LISTS.get(word) or _CHANGES[word]
            if verb == "create" and words:
                profiles = words.pop(0).split(",")
            elif verb == "create-compute" and words and not words[0].startswith("-"):
                words.pop(0)
        else:
            raise Failure(
                f"Invalid combination of input arguments. Please run 'nvidia-smi mig -h' for help. ({word})\n", 2
            )
    if not verb:
        raise Failure("No MIG command was given. Please run 'nvidia-smi mig -h' for help.\n", 2)
    able = [gpu for gpu in choose(gpus, wanted) if document.get("mig_profiles")]
    if not able:
        raise Failure("No MIG-supported devices found.\n", 6)
    enabled = [gpu for gpu in able if mig.is_enabled(document, gpu["index"])]
    if not enabled:
        raise Failure("No MIG-enabled devices found.\n", 6)
    if verb in ("profiles", "placements", "instances", "compute"):
        tables = {"profiles": _profiles, "placements": _placements, "instances": _instances, "compute": _compute}
        return tables[verb](document, enabled), document
    return _change(verb, document, enabled, profiles, busy=busy, only=only, compute=compute)


def _change(
    verb: str,
    document: Document,
    gpus: list[Document],
    profiles: list[str],
    *,
    busy: bool,
    only: set[int] | None,
    compute: bool,
) -> tuple[str, Document]:
    said = ""
    for gpu in gpus:
        try:
            if verb == "create":
                document, text = mig.create(document, gpu, profiles, compute=compute)
            elif verb == "create-compute":
                document, text = mig.create_compute(document, gpu)
            else:
                document, text = mig.destroy(
                    document, gpu, busy=busy, compute_only=verb == "destroy-compute", only=only
                )
        except mig.PartialError as error:
            raise Failure(said + error.text, error.code, error.document) from error
        except mig.MigError as error:
            raise Failure(said + error.text, error.code, document) from error
        said += text
    return said, document


def _profiles(document: Document, gpus: list[Document]) -> str:
    rule = "+" + "-" * 79 + "+\n"
    out = (
        f"{rule}| {'GPU instance profiles:':<78}|\n"
        "| GPU   Name               ID    Instances   Memory     P2P    SM    DEC   ENC  |\n"
        "|                                Free/Total   GiB              CE    JPEG  OFA  |\n"
        f"|{'=' * 79}|\n"
    )
    for gpu in gpus:
        for profile in document["mig_profiles"]:
            free = _free(document, gpu["index"], profile)
            memory = f"{profile['memory_mib'] / 1024:.2f}"
            count = f"{free}/{profile['total']}"
            name = f"MIG {profile['name']}"
            out += f"| {gpu['index']:>3}  {name:<17} {profile['id']:>4}   {count:>5}       {memory:<9}  "
            out += f"No    {profile['sms']:>3}   {profile.get('dec', 0):>3}     0   |\n"
            engines = f"{profile.get('jpeg', 0):>3}   {profile.get('ofa', 0):>3}"
            out += f"|{'':<60}{profile['slices']:>3}   {engines}   |\n{rule}"
    return out


def _free(document: Document, index: int, profile: Document) -> int:
    count = 0
    while (start := mig.place(document, index, profile)) is not None:
        document, _ = mig.create({**document, "faults": []}, {"index": index}, [profile["name"]], compute=False)
        count += 1 if start is not None else 0
    return count


def _placements(document: Document, gpus: list[Document]) -> str:
    out = ""
    for gpu in gpus:
        for profile in document["mig_profiles"]:
            starts = sorted(profile["starts"])
            word = "Placements:" if len(starts) > 1 else "Placement :"
            places = ",".join(map(str, starts))
            out += f"GPU {gpu['index']:2d} Profile ID {profile['id']:2d} {word} {{{places}}}:{profile['size']}\n"
    return out


def _instances(document: Document, gpus: list[Document]) -> str:
    rows = [(gpu, entry) for gpu in gpus for entry in mig.instances(document, gpu["index"])]
    if not rows:
        raise Failure("No GPU instances found: Not Found\n", 6)
    rule = "+" + "-" * 55 + "+\n"
    out = (
        f"{rule}| {'GPU instances:':<54}|\n| GPU   Name             Profile  Instance   Placement  |\n"
        f"|                          ID       ID       Start:Size |\n|{'=' * 55}|\n"
    )
    for gpu, entry in rows:
        profile = entry["profile"]
        place = f"{entry['start']}:{profile['size']}"
        name = f"MIG {profile['name']}"
        out += (
            f"| {gpu['index']:>3}  {name:<16} {profile['id']:>4}     {entry['gi']:>4}        {place:>5}     |\n{rule}"
        )
    return out


def _compute(document: Document, gpus: list[Document]) -> str:
    rows = [(gpu, entry) for gpu in gpus for entry in mig.devices(document, gpu)]
    if not rows:
        raise Failure("No compute instances found: Not Found\n", 6)
    rule = "+" + "-" * 68 + "+\n"
    out = (
        f"{rule}| {'Compute instances:':<67}|\n| GPU     GPU       Name             Profile   Instance   Placement  |\n"
    )
    out += (
        f"|       Instance                       ID        ID       Start:Size |\n|         ID{'':<57}|\n|{'=' * 68}|\n"
    )
    for gpu, entry in rows:
        name = f"MIG {entry['profile']['name']}"
        size = f"0:{entry['profile']['slices']}"
        out += f"| {gpu['index']:>3}     {entry['gi']:>3}       {name:<16} "
        out += f"{0:>4}      {0:>4}         {size:>5}    |\n{rule}"
    return out
