"""Server-side apply of many objects: only what changed is sent, with prune, waiting and a prediction.

Each kind is listed once by the label of its set. An object whose digest is the wanted one and whose live fields are
what is wanted costs no further call. Anything else is sent (or, for a prediction, sent as a dry run), and what the
server makes of it is compared with what was there.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from myriad.errors import InputError, MyriadError
from myriad.kube.certificates import Certificate, secret
from myriad.kube.client import Api, ApiError, ClusterUnreachableError
from myriad.kube.kinds import PODS, SECRETS, Resource
from myriad.kube.objects import (
    APPLIED_ANNOTATION,
    CRD_KIND,
    SET_LABEL,
    WORKLOADS,
    Identity,
    Json,
    cleaned,
    custom_kinds,
    flatten,
    identity,
    is_subset,
    not_ready,
    phase,
    stamped,
    to_yaml,
)

# Kinds whose removal takes other people's data with it: shown when they are no longer wanted, never removed.
PROTECTED = ("Namespace", CRD_KIND, "PersistentVolume", "PersistentVolumeClaim")
_WORKERS = 8
# Words of an API server that cannot ask a webhook yet, or does not serve a kind yet.
_NOT_YET = ("failed calling webhook", "failed to call webhook", "no endpoints available", "no matches for kind")


@dataclass(frozen=True, slots=True)
class Options:
    """How a set is applied.

    Args:
        set_name: the set; stamped on each object as a label, and what prune goes by. Empty with ``existing_only``.
        field_manager: owner of the fields.
        prune: remove objects of the set that are no longer wanted.
        prune_kinds: (apiVersion, kind) to look for leftovers in, beside the kinds of the wanted objects.
        protect: kinds that prune keeps.
        existing_only: change objects that exist, create none.
        force_conflicts: take over fields of other managers. None: only on objects of the set.
        dry_run: change nothing, tell what would change.
        timeout_s: bound of waiting for webhooks, CRDs and conditions, altogether.
        certificates: Secrets that get a first certificate before the workloads come; what is in one already stays.
    """

    set_name: str
    field_manager: str = ""
    prune: bool = False
    prune_kinds: tuple[tuple[str, str], ...] = ()
    protect: tuple[str, ...] = PROTECTED
    existing_only: bool = False
    force_conflicts: bool | None = None
    dry_run: bool = False
    timeout_s: float = 120.0
    certificates: tuple[Certificate, ...] = ()

    @property
    def manager(self) -> str:
        """The field manager."""
        return self.field_manager or f"myriad-{self.set_name}"

    @property
    def annotation(self) -> str:
        """The annotation that holds the digest; an object that is not ours may be part of several sets."""
        return f"{APPLIED_ANNOTATION}-{self.set_name}" if self.existing_only else APPLIED_ANNOTATION


@dataclass(slots=True)
class Outcome:
    """What was (or would be) done; every list is sorted by object."""

    created: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    unchanged: list[str] = field(default_factory=list)
    pruned: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    diff: list[dict[str, str]] = field(default_factory=list)

    @property
    def is_changed(self) -> bool:
        """Whether anything was written."""
        return bool(self.created or self.changed or self.pruned)

    def add(self, kind: str, obj: Identity, before: str, after: str) -> None:
        """Note one object that is created, changed or pruned."""
        getattr(self, kind).append(str(obj))
        self.diff.append({"before_header": str(obj), "after_header": str(obj), "before": before, "after": after})

    def issued(self, certificate: Certificate) -> None:
        """Note a certificate; its content is nobody's to read."""
        text = str(certificate)
        self.created.append(text)
        after = f"for {', '.join(certificate.dns_names)}\n"
        self.diff.append({"before_header": text, "after_header": text, "before": "", "after": after})

    def sort(self) -> None:
        """Threads end in any order; a report does not."""
        for name in ("created", "changed", "unchanged", "pruned", "kept", "missing"):
            getattr(self, name).sort()
        self.diff.sort(key=lambda entry: entry["after_header"])


class ApplyError(MyriadError):
    """One or more objects could not be applied, or what was waited for did not come."""


class Discovery:
    """Kinds to their place in the API; one call for each group and version, remembered."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._lists: dict[str, dict[str, Resource]] = {}
        self._lock = threading.Lock()

    def find(self, api_version: str, kind: str) -> Resource | None:
        """The resource of a kind; None where the server does not serve it (yet)."""
        with self._lock:
            known = self._lists.get(api_version, {}).get(kind)
            if known is None:
                # A kind that was not there may have come with a CRD since: ask again, do not remember a no.
                self._lists[api_version] = self._fetch(api_version)
                known = self._lists[api_version].get(kind)
            return known

    def _fetch(self, api_version: str) -> dict[str, Resource]:
        group, _, version = api_version.rpartition("/")
        try:
            listing = self._api.get_raw(f"/apis/{api_version}" if group else f"/api/{version}")
        except ApiError as error:
            if error.is_not_found or error.status == 503:
                return {}
            raise
        return {
            entry["kind"]: Resource(group, version, entry["name"], entry["kind"], bool(entry["namespaced"]))
            for entry in listing.get("resources") or []
            if "/" not in entry["name"]
        }


class Applier:
    """Applies one set to one cluster.

    Args:
        api: the cluster.
        options: how.
        say: told what is being waited for.
    """

    def __init__(self, api: Api, options: Options, *, say: Callable[[str], None] | None = None) -> None:
        if not options.set_name:
            raise InputError("a set needs a name", hint="give the option set")
        self.api = api
        self.options = options
        self.discovery = Discovery(api)
        self.outcome = Outcome()
        self.deadline = time.monotonic() + options.timeout_s
        self._say = say or (lambda _text: None)
        self._lock = threading.Lock()
        self._live: dict[Identity, Json] = {}
        self._complete: set[Resource] = set()
        self._unissued = options.certificates

    def apply(self, objects: Sequence[Any]) -> Outcome:
        """Bring the cluster to the wanted objects.

        Raises:
            ApplyError: what could not be applied, all of it, with the server's words.
        """
        wanted = self._wanted(objects)
        self._list({(key.api_version, key.kind) for key in wanted} | set(self.options.prune_kinds))
        customs = custom_kinds(wanted.values())
        kinds = {kind for _group, kind in customs}
        phases = sorted({phase(obj, kinds) for obj in wanted.values()})
        for number in phases:
            if number >= WORKLOADS:
                self._issue()
            batch = {key: obj for key, obj in wanted.items() if phase(obj, kinds) == number}
            self._batch(batch, customs)
            if batch and number == 0 and not self.options.dry_run:
                self.wait_for([(key, None) for key in batch])
        self._issue()
        if self.options.prune:
            self._prune(set(wanted))
        self.outcome.sort()
        return self.outcome

    def _wanted(self, objects: Sequence[Any]) -> dict[Identity, Json]:
        wanted: dict[Identity, Json] = {}
        for obj in flatten(objects):
            key = identity(obj)
            if key in wanted:
                raise InputError(f"{key} is given twice", where=f"set {self.options.set_name}")
            set_name = None if self.options.existing_only else self.options.set_name
            wanted[key] = stamped(obj, set_name=set_name, annotation=self.options.annotation)
        return wanted

    def _issue(self) -> None:
        """First certificates, once: under a field manager of their own, so that applying the set leaves them alone."""
        certificates, self._unissued = self._unissued, ()
        for certificate in certificates:
            live = self.api.find(SECRETS, certificate.name, namespace=certificate.namespace)
            if (live or {}).get("data"):
                continue
            if not self.options.dry_run:
                manager = f"{self.options.manager}-certificate"
                obj = secret(certificate)
                self._server_side_apply(identity(obj), SECRETS, obj, force=True, dry_run=False, manager=manager)
            self.outcome.issued(certificate)

    # Reading

    def _list(self, kinds: Iterable[tuple[str, str]]) -> None:
        """The live objects of the set, one call for each kind."""

        def fetch(api_version: str, kind: str) -> None:
            resource = self.discovery.find(api_version, kind)
            if resource is None:
                return
            labels = None if self.options.existing_only else f"{SET_LABEL}={self.options.set_name}"
            items, _version = self.api.list(resource, labels=labels)
            with self._lock:
                if self.options.existing_only:
                    self._complete.add(resource)
                for item in items:
                    # Items of a list carry neither.
                    item.setdefault("apiVersion", api_version)
                    item.setdefault("kind", kind)
                    self._live[identity(item)] = item

        self._each([partial(fetch, *pair) for pair in sorted(kinds)])

    def _find(self, key: Identity, resource: Resource) -> Json | None:
        """The live object, also one that does not carry the label of the set."""
        known = self._live.get(key)
        if known is None and resource not in self._complete:
            known = self.api.find(resource, key.name, namespace=key.namespace or None)
        return known

    # Writing

    def _batch(self, batch: Mapping[Identity, Json], customs: Mapping[tuple[str, str], str]) -> None:
        failures: list[str] = []

        def one(key: Identity, obj: Json) -> None:
            try:
                self._one(key, obj, customs)
            except ClusterUnreachableError:
                raise
            except MyriadError as error:
                with self._lock:
                    failures.append(f"{key}: {error.message}" + (f"\n    {error.hint}" if error.hint else ""))

        self._each([partial(one, key, obj) for key, obj in sorted(batch.items(), key=lambda item: item[0])])
        if failures:
            failures.sort()
            raise ApplyError(
                f"{len(failures)} of {len(batch)} objects were not applied:\n  " + "\n  ".join(failures),
                where=f"set {self.options.set_name}",
            )

    def _one(self, key: Identity, obj: Json, customs: Mapping[tuple[str, str], str]) -> None:
        resource = self._resource(key, customs)
        if resource is None:
            # Only a prediction comes here: the kind is served once its CRD is there.
            self._note("created", key, None, obj)
            return
        if resource.namespaced and not key.namespace:
            key = Identity(key.api_version, key.kind, "default", key.name)
        if not resource.namespaced and key.namespace:
            # Charts give cluster-wide objects the release's namespace; the server drops it.
            key = Identity(key.api_version, key.kind, "", key.name)
            obj = {**obj, "metadata": {name: value for name, value in obj["metadata"].items() if name != "namespace"}}
        live = self._find(key, resource)
        if live is None and self.options.existing_only:
            with self._lock:
                self.outcome.missing.append(str(key))
            return
        if live is not None and self._is_right(obj, live):
            with self._lock:
                self.outcome.unchanged.append(str(key))
            return
        if live is None and self.options.dry_run:
            # Its namespace or webhook may be part of the same set: there is nothing to ask the server yet.
            self._note("created", key, None, obj)
            return
        result = self._send(key, resource, obj, live)
        if result is None:
            self._note("changed", key, live, obj)
        elif live is None:
            self._note("created", key, None, result)
        elif self._differs(live, result):
            self._note("changed", key, live, result)
        else:
            with self._lock:
                self.outcome.unchanged.append(str(key))

    def _resource(self, key: Identity, customs: Mapping[tuple[str, str], str]) -> Resource | None:
        while True:
            resource = self.discovery.find(key.api_version, key.kind)
            if resource is not None:
                return resource
            if self.options.dry_run:
                with self._lock:
                    self.outcome.notes.append(f"{key}: {key.api_version} is not served yet, taken for new")
                return None
            group = key.api_version.rpartition("/")[0]
            if (group, key.kind) not in customs or time.monotonic() > self.deadline:
                raise ApplyError(
                    f"the cluster does not serve {key.kind} of {key.api_version}",
                    hint="install the CustomResourceDefinition first, or correct apiVersion and kind",
                )
            time.sleep(0.3)

    def _is_right(self, wanted: Json, live: Json) -> bool:
        annotation = self.options.annotation
        annotations = (live.get("metadata") or {}).get("annotations") or {}
        return annotations.get(annotation) == wanted["metadata"]["annotations"][annotation] and is_subset(wanted, live)

    def _differs(self, live: Json, result: Json) -> bool:
        """Whether a write changed (or a dry run would change) anything but the server's bookkeeping."""
        return cleaned(live, annotation="") != cleaned(result, annotation="")

    def _send(self, key: Identity, resource: Resource, obj: Json, live: Json | None) -> Json | None:
        """Apply one object; None when a prediction could not be asked for (a webhook that does not answer)."""
        force = self.options.force_conflicts
        if force is None:
            labels = ((live or {}).get("metadata") or {}).get("labels") or {}
            force = live is None or labels.get(SET_LABEL) == self.options.set_name
        waited = False
        while True:
            try:
                return self._server_side_apply(key, resource, obj, force=force, dry_run=self.options.dry_run)
            except ApiError as error:
                text = str(error)
                if not any(words in text for words in _NOT_YET):
                    raise _explained(error, key) from error
                if self.options.dry_run:
                    with self._lock:
                        self.outcome.notes.append(f"{key}: could not be tried, {error.message}")
                    return None
                if time.monotonic() > self.deadline:
                    raise ApplyError(
                        f"not accepted within {self.options.timeout_s:.0f} s: {error.message}",
                        hint="the webhook named above does not answer: look at the pods behind its service",
                    ) from error
                if not waited:
                    waited = True
                    self._say(f"{key}: waiting for a webhook")
                time.sleep(0.5)

    def _note(self, kind: str, key: Identity, live: Json | None, after: Json) -> None:
        annotation = self.options.annotation
        before = to_yaml(cleaned(live, annotation=annotation)) if live is not None else ""
        text = to_yaml(cleaned(after, annotation=annotation))
        if before == text and live is not None:
            # Only the digest moved: say so instead of showing an empty diff.
            before, text = before + "# recorded by another version\n", text + "# recorded\n"
        with self._lock:
            self.outcome.add(kind, key, before, text)

    def _prune(self, wanted: set[Identity]) -> None:
        names = {(key.kind, key.namespace, key.name) for key in wanted}
        # A wanted object without a namespace lies in the default one.
        names |= {(key.kind, "default", key.name) for key in wanted if not key.namespace}
        # A cluster-wide object lies in none, whatever its manifest says.
        names |= {(key.kind, "", key.name) for key in wanted}
        gone = [key for key in self._live if (key.kind, key.namespace, key.name) not in names]

        def remove(key: Identity) -> None:
            if key.kind in self.options.protect:
                with self._lock:
                    self.outcome.kept.append(f"{key} (no longer wanted; objects of this kind are never pruned)")
                return
            live = self._live[key]
            if not self.options.dry_run:
                resource = self.discovery.find(key.api_version, key.kind)
                if resource is not None:
                    self.api.delete(resource, key.name, namespace=key.namespace or None)
            before = to_yaml(cleaned(live, annotation=self.options.annotation))
            with self._lock:
                self.outcome.add("pruned", key, before, "")

        if self.options.existing_only:
            return
        # What was applied last is removed first.
        for number in sorted({phase({"kind": key.kind}, ()) for key in gone}, reverse=True):
            self._each([partial(remove, key) for key in sorted(gone) if phase({"kind": key.kind}, ()) == number])

    # Waiting

    def wait_for(self, conditions: Sequence[tuple[Identity, str | None]]) -> None:
        """Wait until objects are ready, or have a condition.

        Raises:
            ApplyError: at the deadline, with what is missing of each.
        """
        open_ = list(conditions)
        reasons: dict[Identity, str] = {}
        pause = 0.1
        while True:
            still = []
            for key, type_ in open_:
                reason = self._not_ready(key, type_)
                if reason is not None:
                    reasons[key] = reason
                    still.append((key, type_))
            if not still:
                return
            if len(still) < len(open_) or pause == 0.1:
                self._say("waiting for " + ", ".join(str(key) for key, _type in still[:3]))
            open_ = still
            if time.monotonic() > self.deadline:
                lines = [f"{key}: {reasons[key]}" for key, _type in open_]
                details = [line for key, _type in open_ for line in self._pods(key)]
                raise ApplyError(
                    f"not ready within {self.options.timeout_s:.0f} s:\n  " + "\n  ".join(lines + details),
                    where=f"set {self.options.set_name}",
                    hint="look further with: kubectl describe",
                )
            time.sleep(pause)
            pause = min(pause * 1.5, 2.0)

    def _not_ready(self, key: Identity, type_: str | None) -> str | None:
        resource = self.discovery.find(key.api_version, key.kind)
        if resource is None:
            return f"{key.kind} of {key.api_version} is not served"
        namespace = key.namespace or ("default" if resource.namespaced else None)
        return not_ready(self.api.find(resource, key.name, namespace=namespace), type_)

    def _pods(self, key: Identity) -> list[str]:
        """Why the pods of a workload are not ready, one line for each of the first few."""
        resource = self.discovery.find(key.api_version, key.kind)
        if resource is None or key.kind not in ("Deployment", "DaemonSet", "StatefulSet", "Job"):
            return []
        live = self.api.find(resource, key.name, namespace=key.namespace or "default")
        labels = (((live or {}).get("spec") or {}).get("selector") or {}).get("matchLabels") or {}
        if not labels:
            return []
        selector = ",".join(f"{name}={value}" for name, value in sorted(labels.items()))
        items, _version = self.api.list(PODS, namespace=key.namespace or "default", labels=selector)
        return [line for pod in items[:6] if (line := pod_reason(pod)) is not None]

    def wait_dry_run(self, objects: Sequence[Any]) -> None:
        """Wait until the server accepts objects in a dry run: their webhooks answer.

        Raises:
            ApplyError: at the deadline, with the server's words; or at once when it refuses them for good.
        """
        for obj in flatten(objects):
            key = identity(obj)
            while True:
                reason = self._refusal(key, obj)
                if reason is None:
                    break
                if time.monotonic() > self.deadline:
                    raise ApplyError(
                        f"{key} is not accepted within {self.options.timeout_s:.0f} s: {reason}",
                        where=f"set {self.options.set_name}",
                        hint="the webhook named above does not answer: look at the pods behind its service",
                    )
                time.sleep(0.5)

    def _refusal(self, key: Identity, obj: Json) -> str | None:
        resource = self.discovery.find(key.api_version, key.kind)
        if resource is None:
            return f"{key.kind} of {key.api_version} is not served"
        namespace = key.namespace or ("default" if resource.namespaced else None)
        try:
            key = Identity(key.api_version, key.kind, namespace or "", key.name)
            self._server_side_apply(key, resource, obj, force=True, dry_run=True)
        except ApiError as error:
            if any(words in str(error) for words in _NOT_YET) or error.status in (404, 500, 503):
                return error.message
            raise _explained(error, key) from error
        return None

    # Plumbing

    def _server_side_apply(
        self, key: Identity, resource: Resource, obj: Json, *, force: bool, dry_run: bool, manager: str = ""
    ) -> Json:
        """https://kubernetes.io/docs/reference/using-api/server-side-apply/"""
        params = {"fieldManager": manager or self.options.manager, "force": "true" if force else "false"}
        if dry_run:
            params["dryRun"] = "All"
        return self.api._json(
            "PATCH",
            resource.path(key.namespace or None, key.name),
            params=params,
            body=obj,
            # JSON is YAML; the server reads apply patches only under this type.
            content_type="application/apply-patch+yaml",
        )

    def _each(self, calls: Sequence[Callable[[], None]]) -> None:
        """Run calls side by side; the first error ends the batch."""
        if len(calls) < 2:
            for call in calls:
                call()
            return
        with ThreadPoolExecutor(max_workers=min(_WORKERS, len(calls))) as pool:
            for future in [pool.submit(call) for call in calls]:
                future.result()


def pod_reason(pod: Mapping[str, Any]) -> str | None:
    """One line that says why a pod is not ready; None when it is."""
    name = (pod.get("metadata") or {}).get("name")
    status = pod.get("status") or {}
    conditions = {entry.get("type"): entry for entry in status.get("conditions") or []}
    if (conditions.get("Ready") or {}).get("status") == "True":
        return None
    for entry in [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]:
        state = entry.get("state") or {}
        for what in ("waiting", "terminated"):
            found = state.get(what)
            if found and not (what == "terminated" and found.get("exitCode") == 0):
                last = ((entry.get("lastState") or {}).get("terminated") or {}).get("message") or ""
                words = " ".join(
                    text for text in (found.get("reason"), found.get("message"), last.strip()[-300:]) if text
                )
                return f"  pod {name}, container {entry.get('name')}: {words}"
    unscheduled = conditions.get("PodScheduled") or {}
    if unscheduled.get("status") == "False":
        return f"  pod {name}: {unscheduled.get('message') or unscheduled.get('reason')}"
    return f"  pod {name}: {status.get('phase', 'Unknown')}"


def workloads(objects: Sequence[Any]) -> list[Identity]:
    """The objects that one waits for after applying: workloads, CRDs and API services."""
    kinds = ("Deployment", "DaemonSet", "StatefulSet", CRD_KIND, "APIService")
    return [identity(obj) for obj in flatten(objects) if obj.get("kind") in kinds]


def _explained(error: ApiError, key: Identity) -> ApplyError:
    hint = error.hint
    if error.is_conflict:
        hint = (
            "another field manager owns these fields. To take them over set force_conflicts: true; "
            "else leave them out of the object"
        )
    elif error.status == 422 and "immutable" in error.message:
        hint = f"this field cannot be changed in place: delete {key} and run again"
    elif error.status == 404 and "namespaces" in error.message:
        hint = "the namespace does not exist: apply it in the same set or before"
    return ApplyError(error.message, where=str(key), hint=hint)


def predicted_without_cluster(objects: Sequence[Any], options: Options, reason: str) -> Outcome:
    """The outcome of a prediction where there is no cluster yet: everything would be created."""
    outcome = Outcome(notes=[f"no cluster answers yet ({reason}): every object is taken for new"])
    if options.existing_only:
        outcome.missing = [str(identity(obj)) for obj in flatten(objects)]
        return outcome
    for obj in flatten(objects):
        outcome.add("created", identity(obj), "", to_yaml(cleaned(obj)))
    for certificate in options.certificates:
        outcome.issued(certificate)
    outcome.sort()
    return outcome
