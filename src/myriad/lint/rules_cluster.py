"""Rules about configuration files, webhooks, API services, nodes, and what a cluster shows while it runs. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

from myriad.errors import InputError
from myriad.fleet.names import closest
from myriad.lint.documents import is_object
from myriad.lint.policy import policy_of
from myriad.lint.rule import Raw, Severity, rule
from myriad.lint.rules_leaving import seconds_of
from myriad.lint.scene import Json, KeyPath, Scene, Thing, get, mapping, rows, text, texts, thing_of, whole
from myriad.lint.works import FRAMEWORKS, SERVICES, gpu_works, is_accelerator

#: Kinds of configuration that ConfigMaps carry as a text.
CONFIGURATIONS = ("Configuration", "KubeSchedulerConfiguration", "KubeletConfiguration")
_CONFIGURATION_GROUPS = ("config.kueue.x-k8s.io", "kubescheduler.config.k8s.io", "kubelet.config.k8s.io")


def unpacked(things: tuple[Thing, ...]) -> tuple[list[Thing], list[tuple[Thing, str, InputError]]]:
    """Configuration objects inside ConfigMaps, and what of them cannot be read.

    Returns:
        The objects (with the lines of the file that holds the ConfigMap); and ConfigMap, key and error of each text
        that should be one and is none.
    """
    found: list[Thing] = []
    broken: list[tuple[Thing, str, InputError]] = []
    for holder in things:
        if holder.kind != "ConfigMap":
            continue
        for key, value in mapping(holder.body, "data").items():
            if not isinstance(value, str) or not str(key).endswith((".yaml", ".yml", ".conf")):
                continue
            telling = ("kind: Configuration", "KubeSchedulerConfiguration", "KubeletConfiguration")
            volcano = str(key).startswith("volcano") and str(key).endswith(".conf")
            if not volcano and not any(word in value for word in telling):
                continue
            try:
                inner = holder.document.inner(("data", key), value)
            except InputError as error:
                broken.append((holder, str(key), error))
                continue
            for document in inner:
                if is_object(document.body) and text(document.body, "apiVersion").startswith(_CONFIGURATION_GROUPS):
                    thing = thing_of(document, given=holder.given)
                    name = f"in ConfigMap {holder.namespace + '/' if holder.namespace else ''}{holder.name}"
                    found.append(Thing(document, thing.kind, thing.group, name, "", holder.given))
    return found, broken


@rule(
    "unreadable-configuration",
    "error",
    "a configuration in a ConfigMap that is not YAML",
    looks_at="ConfigMap",
    sources=("volcano#5827",),
)
def unreadable_configuration(scene: Scene) -> Iterator[Raw]:
    """The program does not start, or goes on with an older or built-in configuration in silence."""
    for holder, key, error in unpacked(scene.things)[1]:
        place = f" ({error.where})" if error.where else ""
        yield Raw(
            holder,
            ("data", key),
            f"holds {key}, which {error.message}{place}: the program goes on with another configuration, or stops",
            error.hint or "correct it",
        )


@rule("duplicate-key", "error", "a key that stands twice", looks_at="everything from files")
def duplicate_key(scene: Scene) -> Iterator[Raw]:
    """The last one wins in silence; a strict API server refuses the object."""
    told: set[tuple[str, int]] = set()
    for thing in scene.things:
        for doubled in thing.document.doubled:
            if (thing.document.file, doubled.line) in told:
                continue
            told.add((thing.document.file, doubled.line))
            lines = (
                f"lines {doubled.first} and {doubled.line}" if doubled.first != doubled.line else f"line {doubled.line}"
            )
            yield Raw(
                thing,
                (),
                f"has the key {doubled.key} twice ({lines}): the second wins in silence",
                "remove one of them",
                line=doubled.line,
            )


# Kueue's configuration


@rule(
    "fair-sharing-off",
    "warning",
    "weights that do nothing",
    looks_at="ClusterQueue, Cohort, Kueue's Configuration",
    sources=("kueue.sigs.k8s.io/docs/concepts/fair_sharing",),
)
def fair_sharing_off(scene: Scene) -> Iterator[Raw]:
    """fairSharing.weight of queues and cohorts counts only where fair sharing is on in Kueue's configuration."""
    weighted = [
        q for q in scene.of("ClusterQueue", "Cohort") if str(get(q.spec, "fairSharing", "weight") or "1") != "1"
    ]
    for configuration in scene.kueue_configurations:
        sharing = configuration.body.get("fairSharing")
        off = not isinstance(sharing, dict) or sharing.get("enable") is False
        if off and weighted:
            yield Raw(
                configuration,
                ("fairSharing",) if "fairSharing" in configuration.body else (),
                f"has fair sharing off, and {len(weighted)} queue{'s' if len(weighted) > 1 else ''} "
                f"({weighted[0].name}{', ...' if len(weighted) > 1 else ''}) carry a weight: the weights do nothing",
                "set fairSharing: {preemptionStrategies: [LessThanOrEqualToFinalShare, "
                "LessThanInitialShare]}, and restart Kueue",
            )


@rule(
    "pods-ready-wait",
    "error",
    "admitted gangs may hold quota for ever, or are thrown out while they start",
    looks_at="Kueue's Configuration",
    sources=("kueue#1530", "kueue#6143", "kueue#6489"),
)
def pods_ready_wait(scene: Scene) -> Iterator[Raw]:
    """Without waitForPodsReady a gang that is admitted and cannot be placed keeps its quota for ever. With a
    timeout below the grace of its victims it is thrown out while they still save."""
    policy = policy_of(scene)
    for configuration in scene.kueue_configurations:
        waiting = configuration.body.get("waitForPodsReady")
        if not isinstance(waiting, dict) or waiting.get("enable") is False:
            yield Raw(
                configuration,
                ("waitForPodsReady",) if "waitForPodsReady" in configuration.body else (),
                "does not wait for pods to be ready (no waitForPodsReady): a gang that is admitted and cannot be "
                "placed keeps its quota for ever",
                f"set waitForPodsReady: {{timeout: 15m}} (above grace {policy.grace_s} s + pull + start)",
            )
            continue
        timeout = seconds_of(str(waiting.get("timeout", "5m")).replace("m0s", "m"))
        if timeout is not None and timeout <= policy.grace_s:
            yield Raw(
                configuration,
                ("waitForPodsReady", "timeout") if "timeout" in waiting else ("waitForPodsReady",),
                f"gives a gang {timeout} s until its pods are ready, and victims have {policy.grace_s} s to save: the "
                "preemptor is thrown out while it waits for them, and comes again",
                "set the timeout above grace + pull + start, such as 15m",
            )


#: Fields of Kueue's configuration, by place; the second text is what v1beta1 has besides.
_CONFIGURATION: dict[str, tuple[str, str]] = {
    "": (
        "apiVersion kind metadata namespace manageJobsWithoutQueueName managedJobsNamespaceSelector "
        "internalCertManagement waitForPodsReady clientConnection integrations multiKueue fairSharing "
        "admissionFairSharing resources featureGates objectRetentionPolicies visibilityServer webhook leaderElection "
        "metrics health pprofBindAddress controller tls",
        "queueVisibility",
    ),
    "waitForPodsReady": ("timeout blockAdmission requeuingStrategy recoveryTimeout", "enable"),
    "fairSharing": ("preemptionStrategies", "enable"),
    "integrations": ("frameworks externalFrameworks labelKeysToCopy", "podOptions"),
    "clientConnection": ("qps burst", ""),
}
_FRAMEWORK_NAMES = (
    *FRAMEWORKS.values(), "ray.io/rayservice", "sparkoperator.k8s.io/sparkapplication",
    "workload.codeflare.dev/appwrapper",
)  # fmt: skip
_STRATEGIES = ("LessThanOrEqualToFinalShare", "LessThanInitialShare")


@rule(
    "kueue-configuration",
    "error",
    "a configuration with which Kueue does not start",
    looks_at="Kueue's Configuration",
    sources=("kueue.sigs.k8s.io/docs/reference/kueue-config.v1beta2",),
)
def kueue_configuration(scene: Scene) -> Iterator[Raw]:
    """Kueue reads its configuration strictly: an unknown field, integration or strategy, or a value of another type,
    and its pods crash; with its webhooks down no job is created."""
    for configuration in scene.kueue_configurations:
        version = text(configuration.body, "apiVersion").rpartition("/")[2]
        for place, (names, older) in _CONFIGURATION.items():
            allowed = [*names.split(), *(older.split() if version != "v1beta2" else ())]
            at: tuple[str, ...] = (place,) if place else ()
            for key in mapping(configuration.body, *at):
                if key not in allowed:
                    best = closest(str(key), allowed)
                    sure = bool(best) or key in older.split()
                    yield _unstartable(
                        configuration,
                        (*at, str(key)),
                        f"has the field {'.'.join((*at, str(key)))}, which {version or 'it'} of Kueue 0.17 does not "
                        "have",
                        f"write {best}" if best else f"take it out; the fields here are {', '.join(allowed)}",
                        None if sure else "warning",  # A newer Kueue may have it.
                    )
        for place, known in (
            ("integrations.frameworks", _FRAMEWORK_NAMES),
            ("fairSharing.preemptionStrategies", _STRATEGIES),
        ):
            at = tuple(place.split("."))
            for index, name in enumerate(texts(configuration.body, *at)):
                if name not in known:
                    best = closest(name.lower() if "frameworks" in place else name, known)
                    yield _unstartable(
                        configuration,
                        (*at, index),
                        f"has {name!r} in {place}, which it does not know",
                        f"write {best}" if best else f"write some of {', '.join(known)}",
                    )
        said = configuration.body.get("manageJobsWithoutQueueName")
        if said is not None and not isinstance(said, bool):
            yield _unstartable(
                configuration,
                ("manageJobsWithoutQueueName",),
                f"has manageJobsWithoutQueueName {said!r}, which is no truth value",
                "write true or false without quotes",
            )
        timeout = get(configuration.body, "waitForPodsReady", "timeout")
        if timeout is not None and not _GO_DURATION.fullmatch(str(timeout)):
            yield _unstartable(
                configuration,
                ("waitForPodsReady", "timeout"),
                f"has the timeout {timeout!r}, which is no time",
                "write it with its unit, such as 15m",
            )


#: https://pkg.go.dev/time#ParseDuration
_GO_DURATION = re.compile(r"(\d{1,9}(\.\d{1,9})?(ns|us|ms|s|m|h))+|0")


def _unstartable(
    configuration: Thing, path: KeyPath, message: str, change: str, severity: Severity | None = None
) -> Raw:
    return Raw(configuration, path, f"{message}: Kueue does not start", change, severity)


# kube-scheduler


@rule(
    "scheduler-extender",
    "error",
    "an extender of kube-scheduler that is blind or stops it",
    looks_at="KubeSchedulerConfiguration",
    sources=("kubernetes#141781", "kubernetes#126425", "kubernetes#96579"),
)
def scheduler_extender(scene: Scene) -> Iterator[Raw]:
    """With nodeCacheCapable false busy nodes are scored as empty; without ignorable an outage of the extender stops
    every pod; with sampling it never sees most nodes; a bind verb that answers late binds for ever."""
    for configuration in scene.given("KubeSchedulerConfiguration"):
        extenders = rows(configuration.body, "extenders")
        for index, extender in extenders:
            at = ("extenders", index)
            if extender.get("nodeCacheCapable") is not True:
                yield Raw(
                    configuration,
                    (*at, "nodeCacheCapable") if "nodeCacheCapable" in extender else at,
                    f"has an extender ({text(extender, 'urlPrefix') or '?'}) without nodeCacheCapable: kube-scheduler "
                    "scores every node as empty, so busy nodes win",
                    "set nodeCacheCapable: true",
                )
            if extender.get("ignorable") is not True:
                yield Raw(
                    configuration,
                    (*at, "ignorable") if "ignorable" in extender else at,
                    f"has an extender ({text(extender, 'urlPrefix') or '?'}) that is not ignorable: while it is down "
                    "no pod is scheduled",
                    "set ignorable: true",
                )
            if text(extender, "prioritizeVerb") and whole(extender.get("weight"), 0) < 1:
                yield Raw(
                    configuration,
                    (*at, "weight") if "weight" in extender else at,
                    "has an extender with prioritizeVerb and no weight: kube-scheduler does not start",
                    "set weight: 1 or more",
                )
            if text(extender, "bindVerb"):
                yield Raw(
                    configuration,
                    (*at, "bindVerb"),
                    "lets its extender bind: when the answer comes late the pod is bound and forgotten, and tried "
                    "again for ever",
                    "take bindVerb out",
                    "warning",
                )
        if extenders and whole(configuration.body.get("percentageOfNodesToScore"), 0) != 100:
            yield Raw(
                configuration,
                ("percentageOfNodesToScore",) if "percentageOfNodesToScore" in configuration.body else ("extenders",),
                "samples nodes before it asks its extender: above 100 nodes the extender never sees most of them",
                "set percentageOfNodesToScore: 100",
                "warning",
            )


@rule(
    "numa-livelock",
    "warning",
    "a kubelet that refuses pods which the scheduler sends again and again",
    looks_at="KubeletConfiguration",
    sources=("kubernetes#84869", "pytorch/ci-infra#696", "kueue#1476"),
)
def numa_livelock(scene: Scene) -> Iterator[Raw]:
    """single-numa-node refuses a pod whose GPUs do not lie in one NUMA node (TopologyAffinityError); no scheduler
    knows that, and the controller makes the next pod at once."""
    for configuration in scene.given("KubeletConfiguration"):
        if text(configuration.body, "topologyManagerPolicy") == "single-numa-node":
            yield Raw(
                configuration,
                ("topologyManagerPolicy",),
                "takes only pods whose GPUs lie in one NUMA node: one that asks for more is refused on the node "
                "(TopologyAffinityError), and its controller makes pods without end",
                "use best-effort or restricted; whole-node jobs have both NUMA nodes anyway",
            )


# Webhooks and API services


@rule(
    "webhook-fails-closed",
    "error",
    "a webhook that can stop every pod",
    looks_at="MutatingWebhookConfiguration, ValidatingWebhookConfiguration",
    sources=("KAI-Scheduler#883", "volcano#3318"),
)
def webhook_fails_closed(scene: Scene) -> Iterator[Raw]:
    """failurePolicy Fail (the default) on pods of every namespace: while its server is down no pod is created, its
    own included."""
    for configuration in scene.given("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"):
        for index, hook in rows(configuration.body, "webhooks"):
            at = ("webhooks", index)
            if (text(hook, "failurePolicy") or "Fail") != "Fail":
                continue
            for r, line in rows(hook, "rules"):
                resources = texts(line, "resources")
                if any(name in ("pods/binding", "bindings") for name in resources):
                    yield Raw(
                        configuration,
                        (*at, "rules", r),
                        f"has the webhook {text(hook, 'name')} on bindings with failurePolicy Fail: a refusal is "
                        "tried again in every cycle, and the reason stands in no event",
                        "leave bindings out",
                        "warning",
                    )
                pods = any(name in ("pods", "*", "*/*", "pods/*") for name in resources) and any(
                    g in ("", "*") for g in texts(line, "apiGroups")
                )
                if pods and not _narrowed(hook):
                    yield Raw(
                        configuration,
                        (*at, "failurePolicy") if "failurePolicy" in hook else at,
                        f"has the webhook {text(hook, 'name')} on pods of every namespace with failurePolicy Fail: "
                        "while its server is down no pod is created anywhere, its own included",
                        "narrow it by namespaceSelector (leave kube-system and its own namespace out), or set "
                        "failurePolicy: Ignore",
                    )


def _narrowed(hook: Json) -> bool:
    selectors = [mapping(hook, name) for name in ("namespaceSelector", "objectSelector")]
    return any(s.get("matchLabels") or s.get("matchExpressions") for s in selectors) or bool(
        rows(hook, "matchConditions")
    )


@rule(
    "apiservice-down",
    "error",
    "an API service that does not answer",
    looks_at="APIService (a cluster)",
    sources=("kueue#1769", "kueue#3943", "kueue#5150"),
)
def apiservice_down(scene: Scene) -> Iterator[Raw]:
    """Discovery is incomplete then: namespaces hang in Terminating, and garbage is not collected, in the whole
    cluster."""
    for service in scene.given("APIService"):
        for _, condition in rows(service.body, "status", "conditions"):
            if condition.get("type") == "Available" and condition.get("status") == "False":
                yield Raw(
                    service,
                    ("status", "conditions"),
                    f"does not answer ({text(condition, 'reason')}: {text(condition, 'message')[:160]}): namespaces "
                    "hang in Terminating while it is down",
                    "bring its server back, or delete the APIService",
                )


# Nodes


@rule(
    "gpus-withdrawn",
    "warning",
    "GPUs that a node has and does not offer",
    looks_at="Node",
    sources=("kubernetes#92592", "skypilot#10395", "volcano#1776"),
)
def gpus_withdrawn(scene: Scene) -> Iterator[Raw]:
    """The device plugin took them back as unhealthy: the node looks like a smaller one, and gangs of whole nodes
    pass it by."""
    for node in scene.given("Node"):
        capacity, offered = mapping(node.body, "status", "capacity"), mapping(node.body, "status", "allocatable")
        for name in capacity:
            has, gives = whole(capacity[name]), whole(offered.get(name))
            if is_accelerator(name) and gives < has:
                yield Raw(
                    node,
                    ("status", "allocatable"),
                    f"has {has} {name} and offers {gives}: {has - gives} are unhealthy",
                    f"`myriad gate show {node.name}` says why; drain and repair it",
                )


@rule(
    "mixed-gpus",
    "warning",
    "a node with GPUs of two models",
    looks_at="Node",
    sources=("gpu-feature-discovery#7", "gpu-feature-discovery#55", "k8s-device-plugin#519"),
)
def mixed_gpus(scene: Scene) -> Iterator[Raw]:
    """Its one product label is a guess, and a pod gets whichever card is free."""
    for node in scene.given("Node"):
        if text(node.labels, "myriad.dev/gpu-mixed") == "true":
            yield Raw(
                node,
                ("metadata", "labels"),
                "has GPUs of more than one model, and one product label: pods get whichever card is free",
                "give each node cards of one model",
            )


# What runs (a cluster only)


@rule(
    "admitted-but-unhealthy",
    "warning",
    "an admitted job on nodes that are down",
    looks_at="Workload (a cluster)",
    sources=("kueue#10660", "kueue#6757"),
)
def admitted_but_unhealthy(scene: Scene) -> Iterator[Raw]:
    """It stays admitted and holds its quota, while a part of it does not run."""
    for workload in scene.given("Workload"):
        nodes = [text(n, "name") for _, n in rows(workload.body, "status", "unhealthyNodes")]
        if nodes:
            yield Raw(
                workload,
                ("status", "unhealthyNodes"),
                f"is admitted on {', '.join(nodes)}, which {'is' if len(nodes) == 1 else 'are'} down: it holds its "
                "quota and does not run whole",
                "`myriad why` of its job; repair the node, or delete its pods with the out-of-service taint",
            )


@rule(
    "gate-never-removed",
    "warning",
    "pods that stay gated though their job is admitted",
    looks_at="Pod, Workload (a cluster)",
    sources=("kueue#10282", "kueue#9541", "instaslice-operator#82"),
)
def gate_never_removed(scene: Scene) -> Iterator[Raw]:
    """Kueue removes only its own gates, and its topology gate only once nodes are assigned: the job is admitted,
    holds quota, and no scheduler looks at its pods."""
    admitted = {
        (w.namespace, w.name)
        for w in scene.of("Workload")
        if any(
            c.get("type") == "Admitted" and c.get("status") == "True" for _, c in rows(w.body, "status", "conditions")
        )
    }
    for pod in scene.given("Pod"):
        gates = [text(g, "name") for _, g in rows(pod.spec, "schedulingGates")]
        workload = text(pod.annotations, "kueue.x-k8s.io/workload")
        if gates and (pod.namespace, workload) in admitted:
            foreign = [g for g in gates if not g.startswith("kueue.x-k8s.io/")]
            whose = "Kueue never removes gates of others" if foreign else "its job is admitted"
            yield Raw(
                pod,
                ("spec", "schedulingGates"),
                f"is held by the gate {', '.join(foreign or gates)} though its job is admitted: {whose}",
                "remove the gate, or ask its owner; `myriad why` names it",
            )


@rule(
    "preemptible-inference",
    "warning",
    "a service whose pods a training job may evict",
    looks_at="Deployment, StatefulSet",
    sources=("kueue.sigs.k8s.io/docs/tasks/run/deployment",),
)
def preemptible_inference(scene: Scene) -> Iterator[Raw]:
    """Pods of a Deployment that share a queue with training jobs are victims of any job of higher priority."""
    training = {(w.thing.namespace, w.queue) for w in gpu_works(scene) if w.is_gang and w.queue}
    for work in gpu_works(scene):
        if work.kind in SERVICES and (work.thing.namespace, work.queue) in training:
            yield Raw(
                work.thing,
                work.queue_at,
                f"serves from the queue {work.queue}, in which gangs train: a job of higher priority evicts its pods",
                "use the queue of an inference pool",
            )
