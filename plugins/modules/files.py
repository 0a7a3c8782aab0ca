#!/usr/bin/python
"""Lands a role's rendered files in one execution."""

from __future__ import annotations

DOCUMENTATION = r"""
module: files
short_description: Writes a role's whole tree of files in one task
description:
  - Renders C(roles/<role>/templates/<tree>/) on the controller and lands it on the node. The path below the tree is the target path.
    Files that end with C(.j2) are templates (the suffix is dropped), all others are copied as they are.
  - Everything travels in one module call. Every changed file is validated before the first one lands; each lands by rename.
  - A file that the role wrote from the same tree in an earlier run and that is no longer in it is removed.
  - What was written is recorded, so that P(myriad.gpu.node_state#module) finds drift and a reset removes it.
options:
  tree:
    description: Folder below the role's C(templates/). Names the set of files for the removal of those that left it.
    type: str
    required: true
  manifest:
    description:
      - What differs from the defaults, by target path. Keys of each entry are C(mode) (default "0644"), C(owner), C(group) (default root),
        C(validate) (a command with C(%s) for the new file, which bears its own name in a temporary folder), C(present)
        (false removes the file if it is there and was written by this role) and C(secret) (the content is not shown in a diff).
      - A path that the tree does not hold is an error.
    type: dict
    default: {}
  extra:
    description:
      - Files whose path is only known at run time. Each has C(path), one of C(template) (below the role's C(templates/)) and C(content),
        optionally C(vars) for the template, and the keys of I(manifest).
    type: list
    elements: dict
    default: []
  directories:
    description: Directories with C(mode) (default "0755"), C(owner) and C(group), by path. Directories above a file are made as needed (0755, root).
    type: dict
    default: {}
  absent:
    description: Files that must not exist.
    type: list
    elements: path
    default: []
  together:
    description:
      - Directories whose files one program reads together, whoever wrote them. Before anything lands, and also when nothing has to land,
        the program is asked with the directory as it will stand shown in its place (a mount namespace of its own).
      - When it refuses, nothing is changed, and the file at fault is found by leaving out one after the other.
    type: list
    elements: dict
    default: []
    suboptions:
      directory:
        description: The directory.
        type: path
        required: true
      command:
        description: What reads it, with the paths as they really are. Its output is what it makes of the files, one C(key = value) a line below C([table]).
        type: str
        required: true
      own_keys:
        description: Keys that the files of this task may change (patterns; one that begins with C(!) takes back). All of them when not given.
        type: list
        elements: str
      other_keys:
        description: Keys that files which this task does not write may change. All of them when not given.
        type: list
        elements: str
      hint:
        description: What a person can do when a file changes a key that is not its own.
        type: str
        default: ""
  rendered:
    description: The rendered files. Filled by the action plugin.
    type: list
    elements: dict
    default: []
extends_documentation_fragment: [myriad.gpu.state]
author: The developers of Myriad
"""

EXAMPLES = r"""
- name: Configuration of the runtime
  myriad.gpu.files:
    tree: configure
    manifest:
      /etc/containerd/config.toml: {validate: "/usr/local/bin/containerd --config %s config dump"}
      /usr/local/sbin/drain-hook: {mode: "0755"}
      /etc/containerd/conf.d/gpu.toml: {present: "{{ container_runtime_gpu_enabled }}"}
    directories:
      /etc/containerd/certs.d: {mode: "0755"}
    extra:
      - path: "/etc/containerd/certs.d/{{ container_runtime_registry }}/hosts.toml"
        template: hosts.toml.j2
    absent: [/etc/containerd/old.toml]
"""

RETURN = r"""
changed_paths:
  description: Paths that were written, removed or given other attributes, directories included.
  returned: always
  type: list
  elements: str
removed:
  description: Paths that were removed.
  returned: always
  type: list
  elements: str
notes:
  description: What could not be looked at, for example a validator that check mode cannot run because it is not installed yet.
  returned: always
  type: list
  elements: str
content:
  description: The sha256 of each file's content as it stands after the task, by path; null for a removed one.
  returned: always
  type: dict
"""

import base64
import os
import shlex
import shutil
import subprocess
import tempfile

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.myriad.gpu.plugins.module_utils import fsops, merged
from ansible_collections.myriad.gpu.plugins.module_utils.record import (
    ORIGINALS,
    STATE_OPTIONS,
    Record,
    RecordError,
    below,
    write_atomic,
)

VALIDATE_TIMEOUT_S = 60

ARGUMENTS = dict(
    STATE_OPTIONS,
    tree={"type": "str", "required": True},
    manifest={"type": "dict", "default": {}},
    extra={"type": "list", "elements": "dict", "default": []},
    directories={"type": "dict", "default": {}},
    absent={"type": "list", "elements": "path", "default": []},
    together={
        "type": "list",
        "elements": "dict",
        "default": [],
        "options": {
            "directory": {"type": "path", "required": True},
            "command": {"type": "str", "required": True},
            "own_keys": {"type": "list", "elements": "str"},
            "other_keys": {"type": "list", "elements": "str"},
            "hint": {"type": "str", "default": ""},
        },
    },
    rendered={
        "type": "list",
        "elements": "dict",
        "default": [],
        "options": {
            "path": {"type": "path", "required": True},
            "content": {"type": "str", "required": True},
            "encoding": {"type": "str", "choices": ["text", "base64"], "default": "text"},
            "mode": {"type": "str", "default": "0644"},
            "owner": {"type": "str", "default": "root"},
            "group": {"type": "str", "default": "root"},
            "validate": {"type": "str"},
            "secret": {"type": "bool", "default": False},
        },
    },
)


class Failure(Exception):
    """Stops the task; the text is the message."""


class Tree:
    """The work of one task on one node."""

    def __init__(self, params, check):
        self.params = params
        self.check = check
        self.root = params["root"]
        self.diff = []
        self.changed_paths = []
        self.removed = []
        self.notes = []
        self.content = {}
        self.made = set()
        self.record = Record(below(self.root, params["state_dir"]), params["role"], params["run_id"])

    def real(self, path):
        return below(self.root, path)

    def touch(self, path):
        self.changed_paths.append(path)
        if not self.check:
            self.record.begin_change()

    def run(self):
        wanted = [self.prepare(item) for item in self.params["rendered"]]
        self.validate([item for item in wanted if item["rewrite"]])
        self.together(wanted)
        self.directories()
        for item in wanted:
            self.land(item)
        self.remove({item["path"] for item in wanted})
        if not self.check:
            self.record.save()

    def prepare(self, item):
        """Compare one file with what stands there."""
        item = dict(item, mode=fsops.mode_text(item["mode"]))
        if item["encoding"] == "base64":
            item["data"] = base64.b64decode(item["content"])
        else:
            item["data"] = item["content"].encode("utf-8")
        item["sha256"] = fsops.sha256_bytes(item["data"])
        path = self.real(item["path"])
        found = fsops.describe(path)
        if found is not None and found["kind"] in ("directory", "special"):
            raise Failure(
                "{} is a {} where the role wants a file. Move it away and run again; nothing was changed.".format(
                    item["path"], "directory" if found["kind"] == "directory" else "device, socket or pipe"
                )
            )
        old = None
        if found is not None and found["kind"] == "file":
            with open(path, "rb") as stream:
                old = stream.read()
        item["found"], item["old"] = found, old
        item["rewrite"] = old != item["data"]
        item["attributes"] = (
            not item["rewrite"]
            and found is not None
            and not (found["mode"] == item["mode"] and fsops.same_owner(found, item["owner"], item["group"]))
        )
        return item

    def validate(self, items):
        """Ask the programs that will read the files; all of them before anything lands."""
        failures = []
        for item in items:
            if not item["validate"]:
                continue
            words = shlex.split(item["validate"])
            if not any("%s" in word for word in words):
                raise Failure("the validate command of {} names no %s: {}".format(item["path"], item["validate"]))
            program = words[0]
            if not (os.access(program, os.X_OK) if "/" in program else shutil.which(program)):
                text = "{}: not validated, {} is not installed yet".format(item["path"], program)
                if not self.check:
                    raise Failure(
                        "{} cannot be validated: {} is not on this node. Install it before this task; nothing was changed.".format(
                            item["path"], program
                        )
                    )
                self.notes.append(text)
                continue
            failure = self.ask(words, item)
            if failure:
                failures.append("{} is refused by {}:\n{}".format(item["path"], program, failure))
        if failures:
            raise Failure("\n".join([*failures, "No file of this task was changed."]))

    def ask(self, words, item):
        directory = tempfile.mkdtemp(prefix="myriad-validate-")
        try:
            path = os.path.join(directory, os.path.basename(item["path"]))
            with open(path, "wb") as stream:
                stream.write(item["data"])
            os.chmod(path, int(item["mode"], 8) & 0o700)
            command = [word.replace("%s", path) for word in words]
            try:
                done = subprocess.run(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    timeout=VALIDATE_TIMEOUT_S,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                return f"no answer within {VALIDATE_TIMEOUT_S} s"
            except OSError as error:
                return str(error)
            if done.returncode == 0:
                return None
            said = done.stdout.decode("utf-8", "replace").strip().replace(path, item["path"])
            return "\n".join(said.splitlines()[-20:]) or f"exit code {done.returncode} without a word"
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    def together(self, wanted):
        """Ask the programs that read whole directories; all of them before anything lands."""
        failures = []
        for asked in self.params["together"] if self.root in ("", "/") else []:
            program = merged.program_missing(asked["command"])
            unmade = self.check and not os.path.isdir(asked["directory"])
            if program and not self.check:
                raise Failure(
                    "the files of {} cannot be validated: {} is not on this node. Install it before this task; nothing was changed.".format(
                        asked["directory"], program
                    )
                )
            if program or unmade:
                reason = f"{program} is not installed yet" if program else "it does not exist yet"
                self.notes.append("{}: not validated, {}".format(asked["directory"], reason))
                continue
            failures.extend(self.ask_together(asked, wanted))
        if failures:
            raise Failure("\n".join([*failures, "No file of this task was changed."]))

    def ask_together(self, asked, wanted):
        """Sentences about what is wrong with one directory as it will stand."""
        own = {item["path"]: item["data"] for item in wanted}
        whole = merged.Directory(asked["directory"], asked["command"], own, self.leaving(set(own)))
        try:
            after = whole.output()
        except merged.Refused as refused:
            return [merged.refusal(whole, refused, written=set(own))]
        failures = []
        if asked["own_keys"] is not None:
            mine = [path for path in whole.files() if path in own]
            failures.extend(self.foreign(whole.without(mine), whole, mine, asked["own_keys"], asked["hint"]))
        if asked["other_keys"] is not None:
            theirs = [path for path in whole.files() if path not in own]
            alone = whole.without(theirs)
            if theirs and alone.output() != after:
                failures.extend(self.foreign(alone, whole, theirs, asked["other_keys"], asked["hint"]))
        return failures

    def foreign(self, base, whole, paths, keys, hint):
        """Which of these files change keys that are not theirs, each with the key and both values."""
        before = base.output()
        if not merged.foreign(before, whole.output(), keys):
            return []
        lines = []
        for path in paths:
            single = whole.without([other for other in paths if other != path])
            lines += [
                f"{path} {merged.told(item)}, which is not its to change."
                for item in merged.foreign(before, single.output(), keys)
            ]
        return ["\n".join([*lines, hint] if hint else lines)]

    def directories(self):
        for path in sorted(self.params["directories"]):
            wanted = dict(
                {"mode": "0755", "owner": "root", "group": "root"}, **(self.params["directories"][path] or {})
            )
            wanted["mode"] = fsops.mode_text(wanted["mode"])
            self.directory(path, wanted)
            known = self.record.find("directories", path) or {}
            self.record.put(
                "directories",
                dict(wanted, path=path, tree=self.params["tree"], made=path in self.made or bool(known.get("made"))),
            )

    def directory(self, path, wanted):
        real = self.real(path)
        self.parents(path)
        found = fsops.describe(os.path.realpath(real)) if os.path.isdir(real) else fsops.describe(real)
        if found is None:
            self.make(path, wanted)
        elif found["kind"] != "directory":
            raise Failure(
                "{} is a {} where the role wants a directory. Move it away and run again.".format(path, found["kind"])
            )
        elif not (found["mode"] == wanted["mode"] and fsops.same_owner(found, wanted["owner"], wanted["group"])):
            self.touch(path)
            self.diff.append(attribute_diff(path, found, wanted))
            if not self.check:
                fsops.set_attributes(real, wanted["mode"], *fsops.resolve_ids(wanted["owner"], wanted["group"]))

    def parents(self, path):
        """Make what is missing above a path; each is recorded so that a reset removes it when it is empty."""
        for real in fsops.missing_parents(self.real(path)):
            plain = real if self.root in ("", "/") else "/" + os.path.relpath(real, self.root)
            declared = self.params["directories"].get(plain)
            wanted = dict({"mode": "0755", "owner": "root", "group": "root"}, **(declared or {}))
            if plain in self.made:
                continue
            self.make(plain, wanted)
            self.record.put("directories", dict(wanted, path=plain, tree=self.params["tree"], made=True))

    def make(self, path, wanted):
        if path in self.made:
            return
        self.made.add(path)
        if self.check and self.params["predicted"].get(path) == "directory":
            return
        self.content[path] = "directory"
        self.touch(path)
        self.diff.append(
            {
                "before_header": path,
                "after_header": path,
                "before": "",
                "after": "directory, mode {}\n".format(wanted["mode"]),
            }
        )
        if not self.check:
            uid, gid = fsops.resolve_ids(wanted["owner"], wanted["group"])
            # Recorded before it is made, so that a reset after a killed run knows it.
            self.record.put("directories", dict(wanted, path=path, tree=self.params["tree"], made=True))
            self.record.save()
            fsops.make_directory(self.real(path), wanted["mode"], uid, gid)

    def land(self, item):
        path, real = item["path"], self.real(item["path"])
        self.content[path] = item["sha256"]
        self.parents(path)
        for known in self.record.entries("directories"):
            # A directory that an earlier run made for this tree is still in use: keep it as asked for.
            if known.get("tree") == self.params["tree"] and path.startswith(known["path"].rstrip("/") + "/"):
                known["run"] = self.record.run_id
        if item["rewrite"]:
            self.touch(path)
            self.diff.append(content_diff(item))
            if not self.check:
                # Recorded before it lands: a run that is killed in between leaves no file that a reset does not know.
                self.keep_original(item)
                self.remember(item)
                self.record.save()
                fsops.land(real, item["data"], item["mode"], *fsops.resolve_ids(item["owner"], item["group"]))
        elif item["attributes"]:
            self.touch(path)
            self.diff.append(attribute_diff(path, item["found"], item))
            if not self.check:
                fsops.set_attributes(real, item["mode"], *fsops.resolve_ids(item["owner"], item["group"]))
        if not self.check:
            fsops.clean_leftovers(real)
        self.remember(item)

    def keep_original(self, item):
        """Keep what stood there before the role's first write, so that a reset brings it back."""
        if item["old"] is None or self.record.find("files", item["path"]) is not None:
            return
        digest = fsops.sha256_bytes(item["old"])
        write_atomic(os.path.join(below(self.root, self.params["state_dir"]), ORIGINALS, digest), item["old"])
        found = item["found"]
        item["original"] = dict({key: found[key] for key in ("mode", "owner", "group")}, sha256=digest)

    def remember(self, item):
        keep = {key: item[key] for key in ("path", "sha256", "mode", "owner", "group")}
        original = item.get("original") or (self.record.find("files", item["path"]) or {}).get("original")
        if original:
            keep["original"] = original
        self.record.put("files", dict(keep, tree=self.params["tree"]))

    def leaving(self, wanted):
        """Paths that will not stand after this task: asked to be absent, or no longer in the tree."""
        left = {
            entry["path"]
            for entry in self.record.entries("files")
            if entry.get("tree") == self.params["tree"] and entry["path"] not in wanted
        }
        return left | set(self.params["absent"])

    def remove(self, wanted):
        """Files to be absent, and files that left the tree."""
        for path in sorted(self.leaving(wanted)):
            if path in wanted:
                raise Failure(f"{path} is asked for and listed under absent in the same task")
            real = self.real(path)
            found = fsops.describe(real)
            self.content[path] = None
            if found is not None:
                if found["kind"] == "directory":
                    raise Failure(f"{path} is a directory; absent takes files only")
                self.touch(path)
                self.removed.append(path)
                before = None
                if found["kind"] == "file":
                    with open(real, "rb") as stream:
                        before = fsops.decode(stream.read())
                self.diff.append(
                    {
                        "before_header": path,
                        "after_header": path + " (removed)",
                        "before": before or "({})\n".format(found["kind"]),
                        "after": "",
                    }
                )
                if not self.check:
                    os.unlink(real)
            known = self.record.find("files", path)
            if known is not None and known.get("tree") == self.params["tree"]:
                self.record.drop("files", path)


def attribute_diff(path, found, wanted):
    line = "mode %s, owner %s, group %s\n"
    return {
        "before_header": path,
        "after_header": path,
        "before": line % (found["mode"], found["owner"], found["group"]),
        "after": line % (wanted["mode"], wanted["owner"], wanted["group"]),
    }


def content_diff(item):
    path = item["path"]
    header = "{} (mode {}, {}:{})".format(path, item["mode"], item["owner"], item["group"])
    if item["secret"]:
        return {"prepared": f"{header}: the content changes (secret, not shown)\n"}
    after = fsops.decode(item["data"])
    before = "" if item["old"] is None else fsops.decode(item["old"])
    if item["found"] is not None and item["found"]["kind"] == "link":
        before = "(link)\n"
    if after is None or before is None:
        return {"prepared": "{}: the content changes (binary or large, sha256 now {})\n".format(header, item["sha256"])}
    return {"before_header": path, "after_header": header, "before": before, "after": after}


def main():
    # no_log: the arguments hold the content of every file, which does not belong in the node's journal.
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True, no_log=True)
    slim = {key: module.params[key] for key in ("tree", "role", "root", "absent")}
    if not module.params["role"]:
        module.fail_json(
            msg="no role is named; give the option role, or use the task in a role", invocation={"module_args": slim}
        )
    tree = None
    try:
        tree = Tree(module.params, module.check_mode)
        tree.run()
    except (Failure, RecordError, LookupError) as error:
        module.fail_json(
            msg=str(error), exception=None, invocation={"module_args": slim}, diff=tree.diff if tree else []
        )
    except OSError as error:
        module.fail_json(
            msg="{}: {}. What landed before is complete; run again when this is repaired.".format(
                error.filename or "file system", error.strerror
            ),
            exception=None,
            invocation={"module_args": slim},
            diff=tree.diff if tree else [],
        )
    module.exit_json(
        changed=bool(tree.changed_paths),
        changed_paths=tree.changed_paths,
        removed=tree.removed,
        notes=tree.notes,
        content=tree.content,
        diff=tree.diff,
        invocation={"module_args": slim},
    )


if __name__ == "__main__":
    main()
