#!/usr/bin/python3
"""A double of nvidia-smi: answers from /etc/myriad-lab/gpu.json with the texts and exit codes of the real program.

Supports no argument (the table), -L, -q -x, --query-gpu=FIELDS --format=csv[,noheader][,nounits], --version, -i INDEX,
-mig 0|1, --gpu-reset (-r) and mig -lgip|-lgipp|-lgi|-lci|-cgi PROFILES [-C]|-cci|-dci|-dgi. Standard library only.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from myriad.lab.double import mig, node, smi_mig, smi_text, smi_xml
from myriad.lab.double.document import PATH, driver_gpus, has_fault, module_loaded, versions
from myriad.lab.double.smi_text import Failure

Document = dict[str, Any]

NO_DRIVER = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. "
    "Make sure that the latest NVIDIA driver is installed and running.\n"
)


def visible(document: Document) -> list[Document]:
    """The GPUs that the driver can talk to; raises for the faults that end the real program.

    The real program lists the GPUs before a lost one and then stops with a text; so does this one, because a reader
    that trusts the list without the exit code is what the fault is for.
    """
    if not module_loaded(document):
        raise Failure(NO_DRIVER, 9)
    parts = versions(document)
    if parts["library"] != parts["module"]:
        short = ".".join(str(parts["library"]).split(".")[:2])
        raise Failure(
            f"Failed to initialize NVML: Driver/library version mismatch\nNVML library version: {short}\n", 18
        )
    return driver_gpus(document)


def chosen(gpus: list[Document], wanted: str | None) -> list[Document]:
    """The GPUs that -i names, by index, UUID or bus id, several with commas."""
    if wanted is None:
        return gpus
    names = [name.strip() for name in wanted.split(",")]
    found = [gpu for gpu in gpus if {str(gpu["index"]), gpu["uuid"], gpu["bus_id"], gpu["bus_id"][4:]} & set(names)]
    if not found:
        raise Failure("No devices were found\n", 6)
    return found


class Call:
    """One call's arguments.

    Raises:
        Failure: for arguments that this double does not know.
    """

    def __init__(self, arguments: list[str]) -> None:
        self.mode = "table"
        self.fields: list[str] = []
        self.options: list[str] = []
        self.wanted: str | None = None
        self.mig_mode: bool | None = None
        self.rest: list[str] = []
        words = list(arguments)
        if words[:1] == ["mig"]:
            self.mode, self.rest = "mig", words[1:]
            return
        while words:
            self._take(words.pop(0), words)
        if self.mode == "query" and "csv" not in self.options:
            raise Failure("\"--format=\" switch is missing. Please run 'nvidia-smi -h' for help.\n", 2)

    def _take(self, argument: str, words: list[str]) -> None:
        modes = {
            "--version": "version", "-L": "list", "--list-gpus": "list", "-q": "xml", "--query": "xml", "-x": "xml",
            "--xml-format": "xml", "-r": "reset", "--gpu-reset": "reset",
        }  # fmt: skip
        if argument in modes:
            self.mode = modes[argument]
        elif argument.startswith("--query-gpu="):
            self.mode, self.fields = "query", [part.strip() for part in argument.split("=", 1)[1].split(",")]
        elif argument.startswith("--format="):
            self.options = [part.strip() for part in argument.split("=", 1)[1].split(",")]
        elif argument.startswith("--id="):
            self.wanted = argument.split("=", 1)[1]
        elif argument in ("-i", "--id") and words:
            self.wanted = words.pop(0)
        elif argument in ("-mig", "--multi-instance-gpu") and words and words[0] in ("0", "1", "DISABLED", "ENABLED"):
            self.mode, self.mig_mode = "mig-mode", words.pop(0) in ("1", "ENABLED")
        else:
            text = "Invalid combination of input arguments. Please run 'nvidia-smi -h' for help."
            raise Failure(f"{text} ({argument})\n", 2)


def run(arguments: list[str], document: Document, *, busy: bool = False) -> tuple[str, Document]:
    """The text for these arguments, and the document afterwards.

    Raises:
        Failure: with the real program's text and exit code; its `document` is set where something changed before.
    """
    call = Call(arguments)
    if call.mode == "version":
        return smi_text.version(document), document
    gpus = visible(document)
    if call.mode == "mig":
        return smi_mig.run(call.rest, document, gpus, busy=busy, choose=chosen)
    gpus = chosen(gpus, call.wanted)
    if call.mode == "query":
        return smi_text.query(document, gpus, call.fields, call.options), document
    if call.mode in ("mig-mode", "reset"):
        return _change(call, document, gpus, busy=busy)
    answers: dict[str, Callable[[Document, list[Document]], str]] = {
        "list": smi_text.listing,
        "xml": smi_xml.xml,
        "table": smi_text.table,
    }
    return answers[call.mode](document, gpus), document


def _change(call: Call, document: Document, gpus: list[Document], *, busy: bool) -> tuple[str, Document]:
    said = ""
    for gpu in gpus:
        try:
            if call.mig_mode is None:
                document, text = mig.reset(document, gpu, busy=busy)
            else:
                document, text = mig.set_mode(document, gpu, on=call.mig_mode, busy=busy)
        except mig.MigError as error:
            raise Failure(said + error.text, error.code, document) from error
        said += text
    return f"{said}All done.\n", document


def main() -> int:
    """Read the file, hang if told to, answer, and write the file where the call changed something."""
    path = Path(os.environ.get("MYRIAD_LAB_GPU_JSON", PATH))
    try:
        document = node.read(path)
    except (OSError, json.JSONDecodeError):
        sys.stdout.write(NO_DRIVER)
        return 9
    if has_fault(document, "hang"):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        while True:
            signal.pause()
    code = 0
    try:
        text, changed = run(sys.argv[1:], document, busy=node.is_busy())
    except Failure as failure:
        text, code, changed = failure.text, failure.code, failure.document or document
    if changed != document:
        node.write(path, changed)
        if os.geteuid() == 0 and path == Path(PATH):
            node.apply(changed)
    sys.stdout.write(text)
    return code


if __name__ == "__main__":
    sys.exit(main())
