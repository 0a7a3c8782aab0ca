"""Makes images warm on one node: looked at, admitted, pulled, pinned, proven, written down."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from datetime import datetime, timezone

from ansible_collections.myriad.gpu.plugins.module_utils import warm_disk, warm_keep, warm_kubelet
from ansible_collections.myriad.gpu.plugins.module_utils.warm_containerd import RuntimeFault
from ansible_collections.myriad.gpu.plugins.module_utils.warm_progress import ELSEWHERE, WORDS, Progress

# How often a pull is taken up again after the runtime went away in the middle of it.
RESUMES = 3
WARM, PULLED, PINNED, PROVEN = "warm", "pulled", "pinned", "proven"
COLD, REFUSED, FAILED = "cold", "refused", "failed"


class Warming:
    """The work of one task on one node.

    Args:
        runtime: a Containerd or an Engine.
        params: options of the module.
        check: change nothing.
        kubelet: the kubelet's settings; None where none runs.
    """

    def __init__(self, runtime, params, check, kubelet):
        self.runtime = runtime
        self.params = params
        self.check = check
        self.kubelet = kubelet
        self.path = os.path.join(params["folder"], "warm.json")
        self.state = warm_keep.load(self.path)
        self.changed = []
        self.released = []
        self.notes = []
        self.before = {}

    def run(self):
        """Look at all, then warm what is cold. Returns a result for each image, in order."""
        if self.check and self.params["state"] == "present" and not self.runtime.answers():
            # A prediction: the runtime itself is only predicted.
            return [self._predicted(image) for image in self.params["images"]]
        self.before = self._looked()
        results = []
        for image in self.params["images"]:
            began = time.monotonic()
            result = self._one(dict(image))
            result["seconds"] = round(time.monotonic() - began, 1)
            results.append(result)
        if self.params["release"]:
            self._release({image["digest"] for image in self.params["images"]})
        if not self.check:
            self.state.update(
                runtime=self.runtime.name, address=self.runtime.address, snapshotter=self.runtime.snapshotter
            )
            if warm_keep.load(self.path) != self.state:
                warm_keep.save(self.state, self.path)
        return results

    def _looked(self):
        if not self.runtime.answers(self.params["start_timeout_s"] if not self.check else 5):
            raise RuntimeFault(
                "runtime",
                f"{self.runtime.name} does not answer on this node: {self.runtime.silence}",
            )
        return self.runtime.images()

    def _predicted(self, image):
        self.changed.append(f"image {image['ref']}@{image['digest']} {COLD}")
        return dict(self._blank(image), outcome=COLD, sentence=f"{self.runtime.name} does not run here yet")

    def _blank(self, image):
        return {
            "ref": image["ref"], "digest": image["digest"], "hash": warm_keep.short(image["digest"]), "outcome": WARM,
            "cause": "", "sentence": "", "warnings": [], "fetched_bytes": 0, "unpacked_bytes": 0, "resumed": 0,
            "registry": "", "needs_bytes": 0, "seconds": 0.0,
        }  # fmt: skip

    # One image

    def _one(self, image):
        name = f"{image['ref']}@{image['digest']}"
        known = self.state["images"].get(image["digest"], {})
        reference = known.get("ref") or self.runtime.reference(name, self.params["registry"])
        result = self._blank(image)
        found = self.before.get(reference)
        if found is None:
            reference = self.runtime.reference(name, self.params["registry"])
            found = self.before.get(reference)
        snapshots = self.runtime.snapshots()
        chain = image["layers"][-1].get("chain", "") if image["layers"] else ""
        usable = found is not None and (not snapshots or not chain or chain in snapshots)
        try:
            if not usable:
                self._fetch(image, name, reference, snapshots, result)
            elif not found[1]:
                result.update(outcome=PINNED, sentence=f"{reference} was not pinned")
                if not self.check:
                    self.runtime.pin(reference)
            if not self.check and result["outcome"] != COLD:
                self._prove(image, reference, chain, known, result)
        except RuntimeFault as fault:
            outcome = REFUSED if fault.cause == "refused" else FAILED
            result.update(outcome=outcome, cause=fault.cause, sentence=_sentence(name, fault))
        self._note(image, reference, chain, result)
        return result

    def _fetch(self, image, name, reference, snapshots, result):
        blobs = self.runtime.blobs([layer["digest"] for layer in image["layers"]])
        partial = self.runtime.partial()
        needed = warm_disk.need(image["layers"], blobs, snapshots, partial)
        content, unpacked = self.runtime.disks()
        nodefs = warm_disk.Disk.at("/var/lib/kubelet") if self.kubelet is not None else None
        admitted = warm_disk.admit(name, needed, content, unpacked, self.kubelet, nodefs)
        result.update(needs_bytes=needed.total, warnings=list(admitted.warnings), outcome=COLD)
        left = sum(partial.get(layer["digest"], 0) for layer in image["layers"])
        if not admitted.allowed:
            raise RuntimeFault("refused", admitted.sentence)
        if self.check or not self.params["fetch"]:
            result["sentence"] = f"{name} is not there: {warm_disk.size_text(needed.fetch)} to fetch"
            return
        progress = Progress(max(1, needed.total), self.params["stall_s"], self.params["least_rate"])
        folder = tempfile.mkdtemp(prefix="myriad-pull-", dir=self.params["scratch"])
        try:
            for attempt in range(RESUMES + 1):
                try:
                    self.runtime.pull(
                        reference, self.params["registry"], folder, image["layers"], progress, self.params["parallel"]
                    )
                    break
                except RuntimeFault as fault:
                    if fault.cause != "runtime" or attempt == RESUMES:
                        raise
                    # Its unit starts it again; what was fetched stays and is not fetched again.
                    if not self.runtime.answers(self.params["start_timeout_s"]):
                        raise
                    result["resumed"] += 1
                    progress = Progress(max(1, needed.total), self.params["stall_s"], self.params["least_rate"])
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        result.update(
            outcome=PULLED, fetched_bytes=needed.fetch, unpacked_bytes=needed.unpack, registry=self.params["registry"]
        )
        if left or result["resumed"]:
            result["sentence"] = (
                "taken up where an earlier pull broke off" if left else "taken up again after the runtime came back"
            )

    def _prove(self, image, reference, chain, known, result):
        """What the runtime says of it, and a container that starts from it."""
        for tag in image["tags"]:
            other = f"{image['ref']}:{tag}"
            named = self.runtime.images().get(other)
            if named is None or named[0] != image["digest"]:
                self.runtime.tag(reference, other)
                result["outcome"] = PINNED if result["outcome"] == WARM else result["outcome"]
        if result["outcome"] == PULLED:
            # A pull that found the image in the store does not put its label on it.
            self.runtime.pin(reference)
        reported = self._settled(reference)
        if reported is None or image["digest"] not in reported["digests"]:
            raise RuntimeFault(
                "content",
                f"{self.runtime.name} lists it with {', '.join((reported or {}).get('digests', ())) or 'no digest'}",
            )
        audit = warm_kubelet.audit(
            self.kubelet,
            kubelet_version=self.params["kubelet_version"],
            containerd_version=self.runtime.version() if self.runtime.name == "containerd" else "",
            pinned=reported["pinned"],
        )
        result.update(pinned=reported["pinned"], kept=audit["kept"], audit=audit["sentences"])
        if not reported["pinned"]:
            raise RuntimeFault(
                "pin", f"it is labelled, but {self.runtime.name} does not report it as pinned: {audit['sentences'][0]}"
            )
        if (
            result["outcome"] == PULLED
            or self.params["full"]
            or not known.get("warm")
            or known.get("chain", "") != chain
        ):
            self.runtime.try_start(reference)
            if result["outcome"] == WARM and not known.get("warm"):
                result["outcome"] = PROVEN

    def _settled(self, reference):
        """CRI follows containerd by events, a moment later."""
        for wait_s in (0.0, 0.2, 0.5, 1.0, 2.0):
            time.sleep(wait_s)
            reported = self.runtime.reported(reference)
            if reported is not None and reported["pinned"]:
                break
        return reported

    def _note(self, image, reference, chain, result):
        warm = result["outcome"] in (WARM, PULLED, PINNED, PROVEN)
        if result["outcome"] in (PULLED, PINNED, PROVEN) or (self.check and result["outcome"] == COLD):
            self.changed.append(f"image {reference} {result['outcome']}")
        if self.check:
            return
        entry = dict(
            self.state["images"].get(image["digest"], {}),
            ref=reference, tags=list(image["tags"]), chain=chain, warm=warm,
            cause="" if warm else result["sentence"],
        )  # fmt: skip
        if result["outcome"] in (PULLED, PROVEN):
            entry["proven_at"] = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        if warm or image["digest"] in self.state["images"]:
            self.state["images"][image["digest"]] = entry

    def _release(self, wanted):
        """Images that an earlier run pinned and that nobody wants here now go back to the kubelet's collection."""
        for digest in sorted(set(self.state["images"]) - wanted):
            reference = self.state["images"][digest]["ref"]
            self.changed.append(f"image {reference} released")
            self.released.append(reference)
            if self.check:
                continue
            if reference in self.before:
                self.runtime.unpin(reference)
            del self.state["images"][digest]


def _sentence(name, fault):
    if fault.cause == "refused":
        return str(fault)
    if fault.cause == "stalled":
        return f"{name}: the pull stands still: {fault}"
    words = WORDS.get(fault.cause)
    return f"{name}: {words}: {fault}" if words else f"{name}: {fault}"


def elsewhere(results):
    """Whether another registry may have what this one did not give."""
    return any(result["outcome"] == FAILED and result["cause"] in ELSEWHERE for result in results)
