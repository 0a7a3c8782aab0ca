#!/usr/bin/python
"""Puts files from the site's registry on a node, by digest."""

from __future__ import annotations

DOCUMENTATION = r"""
module: artifacts
short_description: Puts files from the site's store on a node by digest
description:
  - Downloads what is missing from the site's own registry, in parallel, resumed after a break, checked while it streams, and lands it by rename,
    so that a program which runs is replaced without disturbing it.
  - What is already right is known by its size, times and inode from the last run and not read again.
  - With C(state=published) a bundle is sent to the registry from the controller; only what the registry lacks travels.
options:
  state:
    description: C(present) puts files on the node. C(published) fills a registry from a bundle, on the controller.
    type: str
    choices: [present, published]
    default: present
  source:
    description: Address of the site's registry, as C(http://10.0.0.10:5000). A file is the blob C(<source>/v2/artifacts/blobs/sha256:<hex>).
    type: str
  store:
    description: Folder on the controller that holds the files as C(sha256/<first two digits>/<hex>), or a bundle. Only missing files are transferred.
    type: path
  items:
    description: The files.
    type: list
    elements: dict
    default: []
    suboptions:
      name:
        description: What the file is called in messages.
        type: str
        required: true
      sha256:
        description: Digest of the content, hexadecimal.
        type: str
        required: true
      path:
        description: Where it stands on the node.
        type: path
        required: true
      mode:
        description: Its mode.
        type: str
        default: "0755"
      owner:
        description: Its owner.
        type: str
        default: root
      group:
        description: Its group.
        type: str
        default: root
  full:
    description: Read every file and compare its digest, instead of trusting size, times and inode.
    type: bool
    default: false
  parallel:
    description: How many downloads run at once.
    type: int
    default: 4
  timeout_s:
    description: Seconds without a byte after which a download is tried again.
    type: int
    default: 30
  use_proxy:
    description: Whether I(source) is asked through the proxy of the environment. The site's own registry is reached directly.
    type: bool
    default: false
  ca:
    description: Certificates in PEM that vouch for I(source) or I(registry), these alone. The system's when empty.
    type: str
    default: ""
  user:
    description: With C(state=published), who publishes. Empty for a registry that knows no users.
    type: str
    default: ""
  password_file:
    description: With I(user), the file on the controller that holds the password.
    type: path
    default: ""
  bundle:
    description: With C(state=published), the bundle's folder on the controller.
    type: path
  registry:
    description: With C(state=published), the registry's address.
    type: str
  transferred:
    description: Files that were sent along, by digest. Filled by the action plugin.
    type: dict
    default: {}
  plan_only:
    description: Only tell what is missing. Filled by the action plugin.
    type: bool
    default: false
extends_documentation_fragment: [myriad.gpu.state]
author: The developers of Myriad
"""

EXAMPLES = r"""
- name: Programs of the runtime
  myriad.gpu.artifacts:
    source: "{{ container_runtime_artifacts_source }}"
    items:
      - {name: containerd, sha256: "{{ container_runtime_sha256.containerd }}", path: /usr/local/bin/containerd}
      - {name: runc, sha256: "{{ container_runtime_sha256.runc }}", path: /usr/local/sbin/runc, mode: "0755"}

- name: Registry filled
  myriad.gpu.artifacts:
    state: published
    bundle: "{{ registry_bundle }}"
    registry: "http://{{ registry_address }}:5000"
  delegate_to: localhost
"""

RETURN = r"""
changed_paths:
  description: Paths that were written or given other attributes.
  returned: state is present
  type: list
  elements: str
downloaded_bytes:
  description: Bytes that were fetched.
  returned: state is present
  type: int
missing:
  description: Digests that are not on the node yet.
  returned: state is present
  type: list
  elements: str
content:
  description: Digest of each file as it stands after the task, by path.
  returned: state is present
  type: dict
"""

import concurrent.futures
import hashlib
import http.client
import os
import re
import ssl
import time
import urllib.error
import urllib.request

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.myriad.gpu.plugins.module_utils import fsops
from ansible_collections.myriad.gpu.plugins.module_utils.record import STATE_OPTIONS, Record, RecordError, below

ATTEMPTS = 4
# Under this name the directories that this module made are recorded.
TREE = "artifacts"
WAIT_S = 0.5

ARGUMENTS = dict(
    STATE_OPTIONS,
    state={"type": "str", "choices": ["present", "published"], "default": "present"},
    source={"type": "str"},
    store={"type": "path"},
    items={
        "type": "list",
        "elements": "dict",
        "default": [],
        "options": {
            "name": {"type": "str", "required": True},
            "sha256": {"type": "str", "required": True},
            "path": {"type": "path", "required": True},
            "mode": {"type": "str", "default": "0755"},
            "owner": {"type": "str", "default": "root"},
            "group": {"type": "str", "default": "root"},
        },
    },
    full={"type": "bool", "default": False},
    parallel={"type": "int", "default": 4},
    timeout_s={"type": "int", "default": 30},
    use_proxy={"type": "bool", "default": False},
    ca={"type": "str", "default": ""},
    user={"type": "str", "default": ""},
    password_file={"type": "path", "default": ""},
    bundle={"type": "path"},
    registry={"type": "str"},
    transferred={"type": "dict", "default": {}},
    plan_only={"type": "bool", "default": False},
)


class Failure(Exception):
    """One item could not be had; the text is the message."""


class Artifacts:
    """The work of one task on one node."""

    def __init__(self, params, check):
        self.params = params
        self.check = check
        self.root = params["root"]
        self.record = Record(below(self.root, params["state_dir"]), params["role"], params["run_id"])
        self.changed_paths = []
        self.diff = []
        self.content = {}
        self.missing = []
        self.downloaded_bytes = 0

    def run(self):
        items = [self.look(item) for item in self.params["items"]]
        wanting = [item for item in items if item["rewrite"]]
        self.missing = sorted({item["sha256"] for item in wanting})
        if self.params["plan_only"]:
            return
        for item in items:
            self.tell(item)
        if self.check:
            return
        if self.changed_paths:
            self.record.begin_change()
        # Recorded before anything lands: a killed run leaves no file that a reset does not know.
        for item in items:
            self.remember(item)
        self.directories(items)
        self.record.save()
        failures = []
        with concurrent.futures.ThreadPoolExecutor(max_workers=max(1, self.params["parallel"])) as pool:
            futures = {pool.submit(self.fetch, item): item for item in wanting}
            for future in concurrent.futures.as_completed(futures):
                try:
                    self.downloaded_bytes += future.result()
                except Failure as failure:
                    failures.append(str(failure))
                except OSError as error:
                    item = futures[future]
                    failures.append(
                        "{}: {}: {}".format(item["name"], error.filename or item["path"], error.strerror or error)
                    )
        for item in items:
            if item["attributes"]:
                fsops.set_attributes(
                    below(self.root, item["path"]), item["mode"], *fsops.resolve_ids(item["owner"], item["group"])
                )
            self.remember(item)
        self.record.save()
        if failures:
            raise Failure("\n".join(sorted(failures)))

    def directories(self, items):
        """Make the directories that are missing; recorded, so that a reset removes them when they are empty."""
        owner, group = fsops.user_name(os.getuid()), fsops.group_name(os.getgid())
        for item in items:
            for real in fsops.missing_parents(below(self.root, item["path"])):
                path = real if self.root in ("", "/") else "/" + os.path.relpath(real, self.root)
                entry = {"path": path, "mode": "0755", "owner": owner, "group": group, "tree": TREE, "made": True}
                self.record.put("directories", entry)
                self.record.save()
                fsops.make_directory(real, "0755", os.getuid(), os.getgid())
        for entry in self.record.entries("directories"):
            # Made by an earlier run and still in use.
            inside = entry["path"].rstrip("/") + "/"
            if entry.get("tree") == TREE and any(item["path"].startswith(inside) for item in items):
                entry["run"] = self.record.run_id

    def look(self, item):
        """Compare one item with what stands there."""
        if not re.fullmatch(r"[0-9a-f]{64}", item["sha256"]):
            raise Failure("{}: {!r} is not a sha256 in hexadecimal digits".format(item["name"], item["sha256"]))
        item = dict(item, mode=fsops.mode_text(item["mode"]))
        path = below(self.root, item["path"])
        found = fsops.describe(path)
        if found is not None and found["kind"] in ("directory", "special"):
            raise Failure(
                "{}: {} is not a file. Move it away and run again; nothing was changed.".format(
                    item["name"], item["path"]
                )
            )
        item["found"] = found
        item["have"] = None
        if found is not None and found["kind"] == "file":
            item["have"] = self.digest(item["path"], path, found["stat"])
        predicted = self.params["predicted"].get(item["path"], item["have"]) if self.check else item["have"]
        item["rewrite"] = predicted != item["sha256"]
        item["attributes"] = (
            not item["rewrite"]
            and found is not None
            and not (found["mode"] == item["mode"] and fsops.same_owner(found, item["owner"], item["group"]))
        )
        return item

    def digest(self, name, path, info):
        known = self.record.find("artifacts", name)
        if known and not self.params["full"] and same_stat(known, info):
            return known["sha256"]
        return fsops.sha256_file(path)

    def tell(self, item):
        path = item["path"]
        self.content[path] = item["sha256"]
        if not (item["rewrite"] or item["attributes"]):
            return
        self.changed_paths.append(path)
        line = "%s sha256 %s, mode %s, %s:%s\n"
        found = item["found"]
        before = ""
        if found is not None:
            before = line % (item["name"], item["have"], found["mode"], found["owner"], found["group"])
        after = line % (item["name"], item["sha256"], item["mode"], item["owner"], item["group"])
        self.diff.append({"before_header": path, "after_header": path, "before": before, "after": after})

    def remember(self, item):
        """Record an item; size and times only when what stands there is what was verified."""
        entry = {key: item[key] for key in ("name", "path", "sha256", "mode", "owner", "group")}
        info = item.get("verified")
        if info is None and not item["rewrite"] and item["found"] is not None:
            info = item["found"]["stat"]
        if info is not None:
            entry.update(size=info.st_size, mtime_ns=info.st_mtime_ns, inode=info.st_ino)
        self.record.put("artifacts", entry)

    def fetch(self, item):
        """Bring one item to its place; returns the bytes that travelled."""
        path = below(self.root, item["path"])
        uid, gid = fsops.resolve_ids(item["owner"], item["group"])
        sent = self.params["transferred"].get(item["sha256"])
        # Named by digest, so that a later run resumes it; the leading dot and the ending keep it off drop-in globs.
        part = os.path.join(
            os.path.dirname(path), ".{}.myriad-{}.tmp".format(os.path.basename(path), item["sha256"][:16])
        )
        for leftover in leftovers(path):
            if leftover != part:
                os.unlink(leftover)
        count = copy_verified(sent, part, item) if sent else self.download(item, part)
        with open(part, "rb+") as stream:
            # A crash of the machine must not leave an empty program under a final name.
            os.fsync(stream.fileno())
        fsops.set_attributes(part, item["mode"], uid, gid)
        os.rename(part, path)
        item["verified"] = os.lstat(path)
        return count

    def download(self, item, part):
        if not self.params["source"]:
            raise Failure("{}: {} was not sent along and no source is named".format(item["name"], item["sha256"]))
        url = "{}/v2/artifacts/blobs/sha256:{}".format(self.params["source"].rstrip("/"), item["sha256"])
        handlers = [] if self.params["use_proxy"] else [urllib.request.ProxyHandler({})]
        if url.startswith("https://"):
            handlers.append(urllib.request.HTTPSHandler(context=self.trust()))
        opener = urllib.request.build_opener(*handlers)
        travelled = [0]
        reason = ""
        for attempt in range(ATTEMPTS):
            if attempt:
                time.sleep(WAIT_S * 2**attempt)
            try:
                self.stream(opener, url, part, travelled)
            except urllib.error.HTTPError as error:
                error.close()
                if error.code == 416:
                    os.unlink(part)
                    reason = "the partial file does not fit what the registry has"
                    continue
                if error.code == 404:
                    raise Failure(
                        "{}: not found at {} (404). The registry answers but was not filled with it: publish the bundle again "
                        "(myriad.gpu.artifacts, state: published).".format(item["name"], url)
                    ) from error
                reason = f"the registry answers {error.code} {error.reason}"
                if error.code < 500 and error.code != 429:
                    break
                continue
            except urllib.error.URLError as error:
                reason = f"unreachable: {error.reason}"
                continue
            except (OSError, http.client.HTTPException) as error:
                reason = "the transfer broke: %s" % (error or type(error).__name__)
                continue
            got = fsops.sha256_file(part)
            if got == item["sha256"]:
                return travelled[0]
            size = os.path.getsize(part)
            os.unlink(part)
            reason = f"content changed: expected sha256 {item['sha256']}, got {got} ({size} bytes)"
            if attempt:
                break
        raise Failure(
            "{}: {}, at {}. Nothing was put in place; run again when it is repaired.".format(item["name"], reason, url)
        )

    def trust(self):
        """Who vouches for the registry: the certificates that were given, these alone, or the system's."""
        try:
            return ssl.create_default_context(cadata=self.params["ca"] or None)
        except (ssl.SSLError, ValueError) as error:
            raise Failure(f"what should vouch for {self.params['source']} is no certificate in PEM: {error}") from error

    def stream(self, opener, url, part, travelled):
        """Append what is missing of one download to its partial file; adds the bytes that travelled."""
        have = os.path.getsize(part) if os.path.exists(part) else 0
        request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
        count = 0
        with opener.open(request, timeout=self.params["timeout_s"]) as answer:
            resumed = answer.status == 206
            expected = answer.headers.get("Content-Length")
            with open(part, "ab" if resumed else "wb") as stream:
                os.chmod(part, 0o600)
                while True:
                    chunk = answer.read(fsops.CHUNK)
                    if not chunk:
                        break
                    stream.write(chunk)
                    count += len(chunk)
                    travelled[0] += len(chunk)
        if expected is not None and count < int(expected):
            raise OSError(f"{count} of {expected} bytes came")


def leftovers(path):
    directory, name = os.path.split(path)
    prefix = f".{name}.myriad-"
    return [
        os.path.join(directory, other)
        for other in os.listdir(directory)
        if other.startswith(prefix) and other.endswith(".tmp")
    ]


def copy_verified(sent, part, item):
    """Copy a transferred file, which may lie on another file system, and check it on the way."""
    digest = hashlib.sha256()
    count = 0
    with open(sent, "rb") as source, open(part, "wb") as target:
        while True:
            chunk = source.read(fsops.CHUNK)
            if not chunk:
                break
            digest.update(chunk)
            target.write(chunk)
            count += len(chunk)
    if digest.hexdigest() != item["sha256"]:
        os.unlink(part)
        raise Failure(
            "{}: the transferred file is damaged: expected sha256 {}, got {}".format(
                item["name"], item["sha256"], digest.hexdigest()
            )
        )
    return count


def same_stat(known, info):
    return (known.get("size"), known.get("mtime_ns"), known.get("inode")) == (
        info.st_size,
        info.st_mtime_ns,
        info.st_ino,
    )


def main():
    # no_log: one line for each file of a stack is no help in the node's journal.
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True, no_log=True)
    slim = {key: module.params[key] for key in ("state", "source", "role", "root", "full")}
    slim["items"] = len(module.params["items"])
    if module.params["state"] == "published":
        module.fail_json(
            msg="state: published is done by the action plugin on the controller; use the full name myriad.gpu.artifacts"
        )
    if not module.params["role"]:
        module.fail_json(
            msg="no role is named; give the option role, or use the task in a role", invocation={"module_args": slim}
        )
    work = None
    try:
        work = Artifacts(module.params, module.check_mode)
        work.run()
    except (Failure, RecordError, LookupError) as error:
        module.fail_json(
            msg=str(error), exception=None, invocation={"module_args": slim}, diff=work.diff if work else []
        )
    module.exit_json(
        changed=bool(work.changed_paths),
        changed_paths=work.changed_paths,
        downloaded_bytes=work.downloaded_bytes,
        missing=work.missing,
        content=work.content,
        diff=work.diff,
        invocation={"module_args": slim},
    )


if __name__ == "__main__":
    main()
