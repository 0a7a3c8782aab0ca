"""Keeps images warm between two runs: pins that were taken off come back, and what is gone is told.

A program of its own on the node, run whenever containerd starts and every few minutes. What is warm stands in `STATE`,
which the role's module writes after it has proven it; the node agent reads it for the labels of the Node.

    images keep     pin again what is not pinned, mark what is gone; ends with 0 when all is warm, else with 1
    images check    the same without changing anything
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys

FOLDER = "/var/lib/myriad/images"
STATE = FOLDER + "/warm.json"
LOCK = FOLDER + "/lock"
VERSION = 1
PIN = "io.cri-containerd.pinned"
# Of a container that keeps an image, for an engine that has no pins.
KEEPER = "myriad-warm-"
LABEL = "dev.myriad.warm=true"
PATH = "/usr/local/bin:/usr/local/sbin:/usr/bin:/usr/sbin:/bin:/sbin"


def load(path=STATE):
    """What was proven warm: {"version", "runtime", "address", "snapshotter", "images": {digest: {...}}}."""
    try:
        with open(path, encoding="utf-8") as stream:
            found = json.load(stream)
    except (FileNotFoundError, ValueError):
        found = {}
    found = found if isinstance(found, dict) and found.get("version") == VERSION else {"version": VERSION}
    found.setdefault("images", {})
    return found


def save(state, path=STATE):
    """Write it by rename. Readable by all: it names images, nothing secret."""
    text = json.dumps(state, indent=1, sort_keys=True) + "\n"
    os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
    part = f"{path}.{os.getpid()}.tmp"
    with open(part, "w", encoding="utf-8") as stream:
        stream.write(text)
    os.rename(part, path)


def short(digest):
    """The part of a digest that labels and names carry: 16 hexadecimal digits."""
    return digest.rpartition(":")[2][:16]


class Locked:
    """One at a time on a node: two runs that prewarm the same node would count the same free bytes."""

    def __init__(self, path=LOCK, wait=True):
        self.path = path
        self.wait = wait
        self._stream = None

    def __enter__(self):
        os.makedirs(os.path.dirname(self.path), mode=0o755, exist_ok=True)
        self._stream = open(self.path, "a", encoding="utf-8")
        try:
            fcntl.flock(self._stream, fcntl.LOCK_EX | (0 if self.wait else fcntl.LOCK_NB))
        except OSError:
            self._stream.close()
            raise
        return self

    def __exit__(self, *_):
        self._stream.close()


def _run(*command):
    program = shutil.which(command[0], path=PATH + ":" + os.environ.get("PATH", ""))
    if program is None:
        return 127, f"{command[0]} is not installed"
    try:
        done = subprocess.run(
            [program, *command[1:]], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False
        )
    except subprocess.TimeoutExpired:
        return 124, f"{command[0]} gave no answer within 60 s"
    return done.returncode, done.stdout if done.returncode == 0 else done.stderr.strip()[-200:]


def look(state, change):
    """What differs from the runtime, as lines. With `change` pins come back and `state` is updated."""
    if not state["images"]:
        return []
    if state.get("runtime", "containerd") == "containerd":
        return _containerd(state, change)
    return _engine(state, change)


def _containerd(state, change):
    ctr = ("ctr", "--address", state.get("address", "/run/containerd/containerd.sock"), "--namespace", "k8s.io")
    code, text = _run(*ctr, "images", "list")
    if code:
        return [f"containerd does not answer: {text}"]
    rows = [line.split() for line in text.splitlines()[1:]]
    there = {row[0]: (row[2], f"{PIN}=pinned" in row[-1].split(",")) for row in rows if len(row) > 2}
    code, text = _run(*ctr, "snapshots", "--snapshotter", state.get("snapshotter", "overlayfs"), "list")
    if code:
        return [f"containerd does not answer: {text}"]
    chains = {line.split()[0] for line in text.splitlines()[1:] if line.strip()}
    said = []
    for digest, image in sorted(state["images"].items()):
        reference = image["ref"]
        found = there.get(reference)
        if found is None or found[0] != digest:
            said.append(_gone(image, f"{reference} is gone from containerd", change))
        elif image.get("chain") and image["chain"] not in chains:
            said.append(_gone(image, f"{reference} is there, but its layers are not unpacked any more", change))
        elif not found[1]:
            said.append(f"{reference} was not pinned" + ("; it is pinned again" if change else ""))
            if change:
                code, text = _run(*ctr, "images", "label", reference, f"{PIN}=pinned")
                if code:
                    said[-1] = f"{reference} cannot be pinned: {text}"
                else:
                    image["repinned"] = image.get("repinned", 0) + 1
        elif change and not image.get("warm"):
            # It came back by itself, as by a pod's own pull; the module proves it at its next run.
            image["cause"] = "it is there again and not proven yet"
    return [line for line in said if line]


def _engine(state, change):
    engine = state["runtime"]
    said = []
    for digest, image in sorted(state["images"].items()):
        reference = image["ref"]
        code, _ = _run(engine, "image", "inspect", reference)
        if code:
            said.append(_gone(image, f"{reference} is gone from {engine}", change))
            continue
        code, _ = _run(engine, "container", "inspect", KEEPER + short(digest))
        if code:
            said.append(f"{reference} had no container that keeps it" + ("; it has one again" if change else ""))
            if change:
                keeper = ("--name", KEEPER + short(digest), "--label", LABEL)
                code, text = _run(engine, "create", *keeper, reference, "keep")
                if code:
                    said[-1] = f"{reference} cannot be kept: {text}"
    return said


def _gone(image, text, change):
    if change:
        image.update(warm=False, cause=text)
    return text


def main(arguments):
    verb = arguments[0] if arguments else ""
    if verb not in ("keep", "check"):
        sys.stderr.write("images keep | check\n")
        return 2
    try:
        # Whoever holds it is prewarming this node, and asserts all of it.
        with Locked(wait=False):
            state = load()
            before = json.dumps(state, sort_keys=True)
            said = look(state, verb == "keep")
            if json.dumps(state, sort_keys=True) != before:
                save(state)
    except BlockingIOError:
        return 0
    for line in said:
        print(line)
    again = ("; it is pinned again", "; it has one again")
    return 1 if any(not line.endswith(again) for line in said) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
