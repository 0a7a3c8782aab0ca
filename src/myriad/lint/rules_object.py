"""Rules about what the API server refuses: kinds, names, shapes and values. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from myriad.fleet.names import closest
from myriad.lint.rule import Raw, dotted, rule
from myriad.lint.scene import KeyPath, Scene, Thing, get, mapping, rows, text, whole
from myriad.lint.schemas import CLOSED, POD_SHAPES, SHAPES, VALUES, VERSIONS, Shape, groups_of, nearly
from myriad.lint.words import JOBS
from myriad.lint.works import MIN_PARALLELISM, TRAINING_OPERATOR_KINDS, Work, works

_KINDS = "every kind that rules know"
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?")
#: Labels and annotations with a rule of their own, which says more.
_JUDGED_ELSEWHERE = frozenset({"kueue.x-k8s.io/max-exec-time-seconds", MIN_PARALLELISM})
#: Kinds whose pods carry the job's name as a label, or as the first part of a host's name.
_NAMES_PODS = ("Job", "CronJob", "JobSet", *TRAINING_OPERATOR_KINDS)
_MAX_NAME, _MAX_LABEL = 253, 63


def places(body: Any, pattern: Sequence[str], path: KeyPath = ()) -> Iterator[tuple[KeyPath, Any]]:
    """What stands at a place that is written `spec.levels.*.nodeLabel`; nothing where a part of it is missing."""
    if not pattern:
        yield path, body
        return
    first, rest = pattern[0], pattern[1:]
    if first != "*":
        if isinstance(body, dict) and first in body:
            yield from places(body[first], rest, (*path, first))
    elif isinstance(body, list):
        for index, item in enumerate(body):
            yield from places(item, rest, (*path, index))
    elif isinstance(body, dict):
        for key, item in body.items():
            yield from places(item, rest, (*path, str(key)))


@rule("unknown-kind", "error", "an apiVersion or a kind that no API server has", looks_at=_KINDS)
def unknown_kind(scene: Scene) -> Iterator[Raw]:
    """The API server answers `no matches for kind`: the object is not made, and what counts on it waits."""
    for thing in (t for t in scene.things if t.given):
        version = text(thing.body, "apiVersion").rpartition("/")[2]
        kinds = VERSIONS.get(thing.group, {})
        served = kinds.get(thing.kind)
        if served is not None:
            if version not in served:
                yield Raw(
                    thing,
                    ("apiVersion",),
                    f"is written for {text(thing.body, 'apiVersion')}, and {thing.kind} is served as "
                    f"{' and '.join(served)}: the API server does not know it",
                    f"write apiVersion: {_api_version(thing.group, served[0])}",
                )
            continue
        right = groups_of(thing.kind)
        if right:
            yield Raw(
                thing,
                ("apiVersion",),
                f"is written for {text(thing.body, 'apiVersion')}, which has no {thing.kind}: the API server does not "
                "know it",
                "write apiVersion: " + " or ".join(_api_version(g, VERSIONS[g][thing.kind][0]) for g in right),
            )
            continue
        known = (*kinds, *CLOSED.get(thing.group, ()))
        if not kinds or thing.kind in known or (thing.group in CLOSED and thing.kind.endswith("List")):
            continue
        best = nearly(thing.kind, known) or (closest(thing.kind, known) if thing.group in CLOSED else None)
        if best or thing.group in CLOSED:
            yield Raw(
                thing,
                ("kind",),
                f"is a kind that {thing.group or 'Kubernetes'} does not have: the API server does not know it",
                f"write kind: {best}" if best else f"the kinds there are {', '.join(sorted(known))}",
            )


def _api_version(group: str, version: str) -> str:
    return f"{group}/{version}" if group else version


@rule("bad-name", "error", "a name that Kubernetes does not take", looks_at=_KINDS)
def bad_name(scene: Scene) -> Iterator[Raw]:
    """Names are lower-case letters, digits, - and . (no _, no blanks, no letters beyond a to z); those of jobs are
    labels of their pods too, so they have 63 characters at most."""
    for thing in (t for t in scene.things if t.given and t.kind in VERSIONS.get(t.group, {})):
        if thing.group.endswith((".config.k8s.io", "config.kueue.x-k8s.io")) or thing.kind.startswith("Kube"):
            continue  # Files of a program, not objects: they have no name.
        metadata = mapping(thing.body, "metadata")
        name = metadata.get("name")
        if name is None or name == "":
            if not text(metadata, "generateName") and not isinstance(thing.body.get("metadata"), list | str):
                yield Raw(
                    thing,
                    ("metadata",),
                    "has no metadata.name: the API server refuses it",
                    "give it a name",
                )
            continue
        if not isinstance(name, str):
            yield Raw(
                thing,
                ("metadata", "name"),
                f"has the name {name!r}, which is no text: the API server refuses it",
                f'write it in quotes: "{name}"',
            )
            continue
        fault = _name_fault(thing, name)
        if fault:
            yield Raw(thing, ("metadata", "name"), f"has a name that {fault}: the API server refuses it", _offer(name))
        namespace = metadata.get("namespace")
        if namespace is not None and (
            not isinstance(namespace, str) or not _SUBDOMAIN.fullmatch(namespace) or "." in namespace
        ):
            yield Raw(
                thing,
                ("metadata", "namespace"),
                f"says the namespace {namespace!r}, which can be none: the API server refuses it",
                "write lower-case letters, digits and -",
            )


def _name_fault(thing: Thing, name: str) -> str:
    if not _SUBDOMAIN.fullmatch(name):
        odd = sorted({c for c in name if not re.fullmatch(r"[-a-z0-9.]", c)})
        return f"holds {', '.join(map(repr, odd))}" if odd else "begins or ends with - or ."
    most = _MAX_LABEL if thing.kind in _NAMES_PODS else _MAX_NAME
    if len(name) > most:
        return f"has {len(name)} characters, and a {thing.kind}'s has {most} at most"
    if thing.kind in TRAINING_OPERATOR_KINDS and (not name[0].isalpha() or "." in name):
        return "begins with a digit or holds a dot, which no host's name in the job may"
    return ""


def _offer(name: str) -> str:
    if not name.isascii():
        return "write lower-case letters (a to z), digits and -"
    offer = re.sub(r"-+", "-", re.sub(r"[^a-z0-9]", "-", name.lower())).strip("-")[:_MAX_LABEL].rstrip("-")
    return f"write lower-case letters, digits and -{f', such as {offer}' if offer and offer != name else ''}"


@rule(
    "defined-twice",
    "error",
    "an object that stands twice, with two contents",
    looks_at="everything from files",
)
def defined_twice(scene: Scene) -> Iterator[Raw]:
    """`kubectl apply` takes the last one in silence: which of two quotas is in force depends on the order of files."""
    first: dict[tuple[str, str, str, str], Thing] = {}
    for thing in scene.things:
        if not thing.given or not thing.name or not thing.document.file or not text(thing.body, "metadata", "name"):
            continue
        if not isinstance(thing.body.get("apiVersion"), str) or thing.document.node is None:
            continue
        before = first.setdefault((thing.kind, thing.group, thing.namespace, thing.name), thing)
        if before is thing or before.body == thing.body:
            continue
        same_file = before.document.file == thing.document.file
        line = before.document.line()
        yield Raw(
            thing,
            ("metadata", "name"),
            f"stands twice with different contents (also in {before.document.file}:{line}): the last one that is "
            "applied wins in silence, and sums over both are wrong",
            "keep one, or give one of them another name",
            None if same_file else "warning",
        )


_WORDS: Mapping[Shape, str] = {
    "mapping": "a mapping (KEY: VALUE)", "list": "a list", "mappings": "a list of mappings", "texts": "a list of texts",
}  # fmt: skip


@rule("wrong-shape", "error", "a list where a mapping belongs, or the other way round", looks_at=_KINDS)
def wrong_shape(scene: Scene) -> Iterator[Raw]:
    """The API server refuses the object; a missing `-` or one step of indentation too few is enough."""
    for thing in (t for t in scene.things if t.given):
        for table in (SHAPES[""], SHAPES.get(thing.kind, {})):
            for place, shape in table.items():
                for path, value in places(thing.body, place.split(".")):
                    yield from _misshapen(thing, path, value, shape)
    for work in works(scene):
        for pods in work.pods if work.kind != "TrainJob" else ():
            for place, shape in POD_SHAPES.items():
                if work.kind == "Pod" and place.startswith("metadata"):
                    continue
                for path, value in places(pods.template, place.split(".")):
                    yield from _misshapen(work.thing, (*pods.path, *path), value, shape)


def _misshapen(thing: Thing, path: KeyPath, value: object, shape: Shape) -> Iterator[Raw]:
    if value is None:
        return
    wanted = _WORDS[shape]
    if not isinstance(value, dict if shape == "mapping" else list):
        yield Raw(
            thing,
            path,
            f"has {_what(value)} at {dotted(path)}, where {wanted} belongs: the API server refuses it",
            "write KEY: VALUE lines below it, without -" if shape == "mapping" else "begin each item below it with -",
        )
    elif isinstance(value, list) and shape in ("mappings", "texts"):
        for index, item in enumerate(value):
            if not isinstance(item, dict if shape == "mappings" else str):
                one = "a mapping (KEY: VALUE)" if shape == "mappings" else "a text"
                yield Raw(
                    thing,
                    (*path, index),
                    f"has {_what(item)} at {dotted((*path, index))}, where {one} belongs: the API server refuses it",
                    f'write it in quotes: "{item}"'
                    if shape == "texts" and not isinstance(item, dict | list | None)
                    else f"each item here is {one}",
                )


def _what(value: object) -> str:
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    shown = repr(value)
    kind = "the text" if isinstance(value, str) else "the value"
    return f"{kind} {shown if len(shown) <= 40 else shown[:37] + '...'}"


@rule("unknown-value", "error", "a value that the field does not take", looks_at=_KINDS)
def unknown_value(scene: Scene) -> Iterator[Raw]:
    """The API server refuses the object. Values are written exactly, and those of v1beta1 are not all in v1beta2."""
    for thing in (t for t in scene.things if t.given):
        version = text(thing.body, "apiVersion").rpartition("/")[2]
        for table in (VALUES.get(thing.kind, {}), VALUES.get(f"{thing.kind}.{version}", {})):
            for place, allowed in table.items():
                for path, value in places(thing.body, place.split(".")):
                    if value is None or value in allowed or isinstance(value, dict | list):
                        continue
                    best = closest(str(value), allowed)
                    quoted = " (YAML reads a bare yes, no, on or off as a truth value)" * isinstance(value, bool)
                    yield Raw(
                        thing,
                        path,
                        f"has {value!r} at {dotted(path)}{quoted}, which it does not take: the API server refuses it",
                        f"write {best}" if best else f"write one of {', '.join(filter(None, allowed))}",
                    )


@rule(
    "label-not-text",
    "error",
    "a label, an annotation or a variable that is refused",
    looks_at=f"{JOBS}, ResourceFlavor, ClusterQueue, everything with labels",
)
def label_not_text(scene: Scene) -> Iterator[Raw]:
    """Labels, annotations, node selectors and variables are texts: a bare number, true or yes is refused. A label's
    value has 63 characters at most: letters, digits, -, _ and dots."""
    for thing in (t for t in scene.things if t.given):
        yield from _no_texts(thing, ("metadata", "labels"), "label")
        yield from _no_texts(thing, ("metadata", "annotations"), "annotation")
        if thing.kind == "ResourceFlavor":
            yield from _no_texts(thing, ("spec", "nodeLabels"), "node label")
        elif thing.kind == "ClusterQueue":
            yield from _no_texts(thing, ("spec", "namespaceSelector", "matchLabels"), "label")
    for work in works(scene):
        for pods in work.pods if work.kind != "TrainJob" else ():
            if work.kind != "Pod":
                yield from _no_texts(work.thing, (*pods.path, "metadata", "labels"), "label")
                yield from _no_texts(work.thing, (*pods.path, "metadata", "annotations"), "annotation")
            yield from _no_texts(work.thing, (*pods.path, "spec", "nodeSelector"), "node label")
            for path, container in pods.containers():
                for index, variable in rows(container, "env"):
                    value = variable.get("value")
                    if value is not None and not isinstance(value, str):
                        yield Raw(
                            work.thing,
                            (*path, "env", index, "value"),
                            f"gives the variable {text(variable, 'name') or '?'} the value {value!r}, which is no "
                            "text: the API server refuses it",
                            f'write it in quotes: "{_bare(value)}"',
                        )


def _no_texts(thing: Thing, at: KeyPath, what: str) -> Iterator[Raw]:
    for key, value in mapping(thing.body, *at).items():
        if key in _JUDGED_ELSEWHERE or value is None:
            continue
        if not isinstance(value, str):
            yield Raw(
                thing,
                (*at, key),
                f"has the {what} {key} with the value {value!r}, which is no text: the API server refuses it",
                f'write it in quotes: "{_bare(value)}"' if not isinstance(value, dict | list) else "write a text",
            )
        elif what != "annotation" and (len(value) > _MAX_LABEL or not _LABEL_VALUE.fullmatch(value)):
            shown = value if len(value) <= 80 else f"{value[:77]}..."
            yield Raw(
                thing,
                (*at, key),
                f"has the {what} {key} with the value {shown!r}, which no label can have: the API server refuses it",
                f"write at most {_MAX_LABEL} letters, digits, -, _ and dots, beginning and ending with a letter or "
                "digit",
            )


def _bare(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@rule("restart-policy", "error", "a restartPolicy that the kind does not take", looks_at="Job, CronJob, JobSet")
def restart_policy(scene: Scene) -> Iterator[Raw]:
    """A Job takes Never or OnFailure. Without the field Always is meant, and the Job is refused."""
    for work in works(scene):
        if work.kind not in ("Job", "CronJob", "JobSet"):
            continue
        for pods in work.pods:
            value = pods.spec.get("restartPolicy")
            # JobSet fills in OnFailure.
            if not pods.spec or value in ("Never", "OnFailure") or (value is None and work.kind == "JobSet"):
                continue
            said = "says no restartPolicy, which means Always" if value is None else f"says restartPolicy {value!r}"
            yield Raw(
                work.thing,
                (*pods.path, "spec", "restartPolicy") if value is not None else (*pods.path, "spec"),
                f"{said}: a {work.thing.kind} takes Never or OnFailure, and the API server refuses it",
                "write restartPolicy: Never in the pod template",
            )


#: The container that the training operator looks for, by kind.
_CONTAINERS = {
    "PyTorchJob": "pytorch", "TFJob": "tensorflow", "XGBoostJob": "xgboost", "PaddleJob": "paddle", "JAXJob": "jax",
}  # fmt: skip


@rule(
    "operator-refuses",
    "error",
    "a job that the training operator refuses",
    looks_at="PyTorchJob and its like",
    sources=("training operator's webhooks",),
)
def operator_refuses(scene: Scene) -> Iterator[Raw]:
    """The operator sets ranks in the container of its kind's name (pytorch), and a PyTorchJob has one master."""
    for work in works(scene):
        wanted = _CONTAINERS.get(work.kind)
        if wanted is None or work.thing.group != "kubeflow.org":
            continue
        for pods in work.pods:
            named = [text(c, "name") for _, c in rows(pods.spec, "containers")]
            if named and wanted not in named:
                yield Raw(
                    work.thing,
                    (*pods.path, "spec", "containers"),
                    f"has no container called {wanted} in {pods.name} (it has {', '.join(n or '?' for n in named)}): "
                    "the training operator refuses it",
                    f"give the container that trains the name {wanted}",
                )
            if pods.name == "Master" and work.kind == "PyTorchJob" and _masters(work) > 1:
                yield Raw(
                    work.thing,
                    pods.counted_at,
                    f"has {_masters(work)} masters: the training operator refuses it",
                    "write replicas: 1 for Master, and the others as Worker",
                )


def _masters(work: Work) -> int:
    return whole(get(work.thing.body, "spec", "pytorchReplicaSpecs", "Master", "replicas"), 1)
