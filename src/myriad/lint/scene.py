"""What is looked at: objects with their place, indexed once; and safe reading of objects that may be wrong. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from functools import cached_property
from typing import Any

from myriad import quantity
from myriad.lint.documents import VOLCANO_CONFIGURATION, Document, is_volcano_configuration
from myriad.lint.schemas import is_foreign

Json = dict[str, Any]
KeyPath = tuple[str | int, ...]

#: Kinds of Kubernetes without a namespace, of those that rules name.
CLUSTER_KINDS = frozenset(
    {
        "AdmissionCheck", "APIService", "ClusterQueue", "ClusterTrainingRuntime", "Cohort", "Configuration",
        "HyperNode",
        "KubeSchedulerConfiguration", "KubeletConfiguration", "MutatingWebhookConfiguration", "Namespace", "Node",
        "PriorityClass", "Queue", "ResourceFlavor", "Topology", "ValidatingWebhookConfiguration",
        "WorkloadPriorityClass", VOLCANO_CONFIGURATION,
    }
)  # fmt: skip
#: The largest amount of anything that Kubernetes counts.
MOST = Decimal(2**63 - 1)
_LONGEST = 512
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
#: Namespaces of the platform: what runs there is no team's job.
PLATFORM_NAMESPACES = frozenset(
    {"kube-system", "kube-public", "kube-node-lease", "kueue-system", "volcano-system", "myriad-system", "kubeflow",
     "gpu-operator", "local-path-storage"}
)  # fmt: skip


def get(body: Any, *path: str | int) -> Any:
    """The value at a path; None where any part of it is missing or of another shape."""
    for part in path:
        if isinstance(body, Mapping) and isinstance(part, str):
            body = body.get(part)
        elif isinstance(body, Sequence) and not isinstance(body, str) and isinstance(part, int):
            body = body[part] if -len(body) <= part < len(body) else None
        else:
            return None
    return body


def mapping(body: Any, *path: str | int) -> Json:
    """The mapping at a path, {} where there is none. Its keys are texts, as they are in JSON."""
    found = get(body, *path)
    if not isinstance(found, dict):
        return {}
    return found if all(type(key) is str for key in found) else {str(key): value for key, value in found.items()}


def rows(body: Any, *path: str | int) -> list[tuple[int, Json]]:
    """The mappings of the list at a path, each with its index in it."""
    found = get(body, *path)
    if not isinstance(found, list):
        return []
    return [(index, item) for index, item in enumerate(found) if isinstance(item, dict)]


def texts(body: Any, *path: str | int) -> list[str]:
    """The texts of the list at a path."""
    found = get(body, *path)
    return [item for item in found if isinstance(item, str)] if isinstance(found, list) else []


def text(body: Any, *path: str | int) -> str:
    """The text at a path, "" where there is none."""
    found = get(body, *path)
    return found if isinstance(found, str) else ""


def whole(value: Any, default: int = 0) -> int:
    """A whole number (8, "8", 8.0), or the default for anything else."""
    found = number(value)
    return int(found) if found is not None and found == int(found) else default


def number(value: Any) -> Decimal | None:
    """A Kubernetes quantity ("64", 64, "64k", "500m"), None where it is none.

    What is larger than Kubernetes counts is capped at MOST, as the API server does.
    """
    if isinstance(value, bool) or not isinstance(value, str | int | float) or len(str(value)) > _LONGEST:
        return None
    try:
        found = quantity.parse(str(value))
    except ValueError:
        return None
    return max(-MOST, min(MOST, found))


def plain(value: Decimal) -> str:
    """A number as people write it: 64, 1.2."""
    whole_part = int(value)
    return f"{whole_part:,}" if value == whole_part else f"{value.normalize():f}"


@dataclass(frozen=True, slots=True, eq=False)
class Thing:
    """One object.

    Attributes:
        document: the object and its place.
        namespace: its namespace; "" where it has none or does not say.
        given: whether findings about it are wanted (False: it is only known, as what other objects refer to).
    """

    document: Document
    kind: str
    group: str
    name: str
    namespace: str
    given: bool = True

    @property
    def body(self) -> Json:
        """The object itself."""
        return self.document.body

    @property
    def spec(self) -> Json:
        """Its spec, {} where there is none."""
        return mapping(self.body, "spec")

    @property
    def labels(self) -> Json:
        """Its labels."""
        return mapping(self.body, "metadata", "labels")

    @property
    def annotations(self) -> Json:
        """Its annotations."""
        return mapping(self.body, "metadata", "annotations")

    @property
    def title(self) -> str:
        """`Job vision/bert`, `Queue train`."""
        if self.namespace and not self.name:
            return f"{self.kind} without a name in {self.namespace}"
        place = f"{self.namespace}/{self.name}" if self.namespace else self.name
        return f"{self.kind} {place}".strip()

    @property
    def owned(self) -> bool:
        """Whether a controller made it: then its owner is what is judged."""
        return any(owner.get("controller") for _, owner in rows(self.body, "metadata", "ownerReferences"))


def thing_of(document: Document, *, given: bool = True) -> Thing:
    """An object as rules see it."""
    body = document.body
    metadata = mapping(body, "metadata")
    api_version = text(body, "apiVersion")
    kind = text(body, "kind")
    if is_volcano_configuration(body):
        kind = VOLCANO_CONFIGURATION
    name = text(metadata, "name") or text(metadata, "generateName")
    namespace = "" if kind in CLUSTER_KINDS else text(metadata, "namespace")
    group = api_version.rpartition("/")[0]
    if is_foreign(kind, group):
        kind = f"{kind}.{group}"  # Another project's kind of the same name, written as kubectl does.
    return Thing(document, kind, group, name, namespace, given)


@dataclass(frozen=True)
class Scene:
    """Everything that is looked at together.

    Attributes:
        things: the objects.
        sure: kinds of which every object is here, so that what is not here does not exist (a cluster, an inventory).
        now: for ages; None where the objects come from files.
    """

    things: tuple[Thing, ...]
    sure: frozenset[str] = frozenset()
    now: datetime | None = None
    _cache: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def by_kind(self) -> Mapping[str, list[Thing]]:
        """Objects by kind."""
        found: dict[str, list[Thing]] = defaultdict(list)
        for thing in self.things:
            found[thing.kind].append(thing)
        return found

    @cached_property
    def _exact(self) -> Mapping[tuple[str, str, str], Thing]:
        return {(thing.kind, thing.name, thing.namespace): thing for thing in reversed(self.things)}

    @cached_property
    def _by_name(self) -> Mapping[tuple[str, str], list[Thing]]:
        found: dict[tuple[str, str], list[Thing]] = defaultdict(list)
        for thing in self.things:
            found[thing.kind, thing.name].append(thing)
        return found

    def of(self, *kinds: str) -> list[Thing]:
        """Objects of these kinds, in the order in which they were read."""
        return [thing for kind in kinds for thing in self.by_kind.get(kind, ())]

    def given(self, *kinds: str) -> list[Thing]:
        """Those of them about which findings are wanted."""
        return [thing for thing in self.of(*kinds) if thing.given]

    def find(self, kind: str, name: str, namespace: str = "") -> Thing | None:
        """An object by name; one that does not say its namespace counts as in any."""
        exact = self._exact.get((kind, name, namespace))
        if exact is not None:
            return exact
        for thing in self._by_name.get((kind, name), ()):
            if not namespace or not thing.namespace or thing.namespace == namespace:
                return thing
        return None

    def knows(self, kind: str) -> bool:
        """Whether it can be said that an object of this kind does not exist: all are here, or some are."""
        return kind in self.sure or kind in self.by_kind

    @cached_property
    def kueue(self) -> bool:
        """Whether Kueue counts quota here."""
        return bool(self.of("ClusterQueue", "LocalQueue", "Configuration")) or "ClusterQueue" in self.sure

    @cached_property
    def kueue_configurations(self) -> tuple[Thing, ...]:
        """Kueue's own configuration (a running Kueue has one)."""
        return tuple(t for t in self.of("Configuration") if t.group.startswith("config.kueue.x-k8s.io"))

    def remember(self, key: str, value: Any) -> Any:
        """Keep what several rules need; what is kept under a key stays the first value."""
        return self._cache.setdefault(key, value)

    def recall(self, key: str) -> Any:
        """What was kept, None where nothing was."""
        return self._cache.get(key)


def scene_of(
    documents: Iterable[Document],
    *,
    context: Iterable[Document] = (),
    sure: Iterable[str] = (),
    now: datetime | None = None,
) -> Scene:
    """Objects that are judged, and others that are only known. An object that is given hides its older self."""
    given = [thing_of(document) for document in documents]
    names = {(thing.kind, thing.group, thing.namespace, thing.name) for thing in given}
    known = [thing_of(document, given=False) for document in context]
    known = [t for t in known if (t.kind, t.group, t.namespace, t.name) not in names]
    return Scene((*given, *known), frozenset(sure), now)
