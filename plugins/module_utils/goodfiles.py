"""The files with which a unit last came up: kept beside the records, put back when it does not with newer ones."""

from __future__ import annotations

import json
import os

from ansible_collections.myriad.gpu.plugins.module_utils import fsops, merged
from ansible_collections.myriad.gpu.plugins.module_utils.record import write_atomic

FOLDER = "good"
# Suffix under which a file that nobody of Myriad wrote is moved aside; programs that take *.toml or *.conf pass it by.
ASIDE = ".refused"
LARGEST = 1 << 20


class GoodFiles:
    """The kept files of one directory for one unit."""

    def __init__(self, state_dir, unit, directory):
        self.directory = directory
        self.folder = os.path.join(state_dir, FOLDER, unit)
        self.index = os.path.join(self.folder, "index.json")

    def read(self):
        """What is kept, by path: sha256, mode, owner and group; None when nothing was kept yet."""
        try:
            with open(self.index, encoding="utf-8") as stream:
                return dict(json.load(stream))
        except (OSError, ValueError):
            return None

    def now(self):
        """The files as they stand: (attributes, content) by path."""
        found = {}
        for path in sorted(merged.inside(self.directory)):
            # A link may lead anywhere; what it leads to is not this directory's.
            if os.path.islink(path) or os.path.getsize(path) > LARGEST:
                continue
            with open(path, "rb") as stream:
                data = stream.read()
            described = fsops.describe(path)
            keep = {key: described[key] for key in ("mode", "owner", "group")}
            found[path] = (dict(keep, sha256=fsops.sha256_bytes(data)), data)
        return found

    def output(self):
        """What the unit's program made of the kept files; empty when nothing was kept yet."""
        try:
            with open(os.path.join(self.folder, "output"), encoding="utf-8") as stream:
                return stream.read()
        except OSError:
            return ""

    def keep(self, output):
        """Remember the files as they stand, and what the program makes of them: the unit is up with them."""
        found = self.now()
        index = {path: attributes for path, (attributes, _data) in found.items()}
        if index == self.read() and output == self.output():
            return
        write_atomic(os.path.join(self.folder, "output"), output.encode())
        for attributes, data in found.values():
            write_atomic(os.path.join(self.folder, attributes["sha256"]), data)
        write_atomic(self.index, (json.dumps(index, sort_keys=True, indent=1) + "\n").encode())
        wanted = {attributes["sha256"] for attributes in index.values()} | {"index.json", "output"}
        for name in set(os.listdir(self.folder)) - wanted:
            os.unlink(os.path.join(self.folder, name))

    def differing(self):
        """Sentences about the files that are not those which were kept."""
        kept = self.read() or {}
        found = self.now()
        sentences = [f"{path} is new" for path in sorted(set(found) - set(kept))]
        sentences += [f"{path} is gone" for path in sorted(set(kept) - set(found))]
        sentences += [
            f"{path} is different"
            for path in sorted(set(found) & set(kept))
            if found[path][0]["sha256"] != kept[path]["sha256"]
        ]
        return sentences

    def put_back(self, ours):
        """Put back what was kept.

        Args:
            ours: paths that roles recorded; any other new file is moved aside, not removed.
        """
        kept = self.read() or {}
        for path, (attributes, _data) in self.now().items():
            if path in kept and attributes["sha256"] == kept[path]["sha256"]:
                continue
            if path not in ours and path not in kept:
                os.replace(path, path + ASIDE)
            elif path not in kept:
                os.unlink(path)
        for path, attributes in kept.items():
            source = os.path.join(self.folder, attributes["sha256"])
            found = fsops.describe(path)
            if found is not None and found["kind"] == "file" and fsops.sha256_file(path) == attributes["sha256"]:
                continue
            with open(source, "rb") as stream:
                data = stream.read()
            os.makedirs(os.path.dirname(path), exist_ok=True)
            fsops.land(path, data, attributes["mode"], *fsops.resolve_ids(attributes["owner"], attributes["group"]))
