"""Admission rules as ValidatingAdmissionPolicies: what a job must say before it is let into a team's namespace.

One policy and one binding for each rule, so that each is refused, told or left alone by itself (ADR 28). They are
CEL: https://kubernetes.io/docs/reference/access-authn-authz/validating-admission-policy/. A policy looks at namespaces
of teams only, and there at what asks for GPUs; where an expression fails on an object that nobody foresaw, the object
is let in. So no rule can lock a cluster out, and a pod without GPUs is touched by none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from myriad.fleet import mig, model
from myriad.fleet.labels import TEAM_LABEL

API = "admissionregistration.k8s.io/v1"
POOLS_ANNOTATION = "myriad.dev/pools"
"""On a team's namespace: its pools, joined by commas. A literal in every policy would grow with the teams."""
HANDLES_SIGTERM = "myriad.dev/handles-sigterm"
"""Annotation of a job or its pods: "true" where the program saves and ends by itself on SIGTERM."""
USE = "myriad.dev/use"
"""Annotation of a batch job in an inference pool: "inference"."""
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
ADMISSION_GATE = "kueue.x-k8s.io/admission"
TIME_LABEL = "kueue.x-k8s.io/max-exec-time-seconds"
MIN_PARALLELISM = "kueue.x-k8s.io/job-min-parallelism"
GROUP_MIN_MEMBER = "scheduling.volcano.sh/group-min-member"

DEFAULT_EFFECTS: Mapping[str, str] = {
    "queue": "deny",
    "gpu-limits": "deny",
    "whole-gpus": "deny",
    "gang": "deny",
    "inference-queue": "deny",
    "time-limit": "deny",
    "image-tag": "deny",
    "time-limit-default": "warn",
    "grace": "warn",
    "stop-signal": "warn",
    "image-registry": "warn",
    "image-digest": "warn",
}
"""What a rule does where the description does not say: deny what harms others or can never run, warn of what harms only
its owner (ADR 28)."""

_BATCH = ("Job", "PyTorchJob")
_RESOURCES = {
    "Pod": {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]},
    "Job": {"apiGroups": ["batch"], "apiVersions": ["v1"], "resources": ["jobs"]},
    "PyTorchJob": {"apiGroups": ["kubeflow.org"], "apiVersions": ["v1"], "resources": ["pytorchjobs"]},
    "Service": {
        "apiGroups": ["apps"],
        "apiVersions": ["v1"],
        "resources": ["deployments", "statefulsets", "replicasets", "daemonsets"],
    },
}
# A controller's own objects were checked as what the user wrote. Users cannot be mistaken for one: a team's service
# accounts are those of its own namespaces.
_MADE_BY_CONTROLLER = (
    "has(object.metadata.ownerReferences) && object.metadata.ownerReferences.exists(o, has(o.controller) && "
    "o.controller && o.kind in ['Job', 'PyTorchJob', 'ReplicaSet', 'StatefulSet', 'DaemonSet', 'Deployment', 'JobSet', "
    "'LeaderWorkerSet', 'TrainJob', 'RayJob', 'RayCluster', 'MPIJob', 'AppWrapper']) && "
    "((request.userInfo.username.startsWith('system:serviceaccount:') && "
    "!request.userInfo.username.startsWith('system:serviceaccount:' + request.namespace + ':')) || "
    "request.userInfo.username == 'system:kube-controller-manager' || "
    "(has(request.userInfo.groups) && 'system:masters' in request.userInfo.groups))"
)
_TEMPLATES = (
    "(request.kind.kind == 'Pod' ? [object] : "
    "request.kind.kind == 'PyTorchJob' ? (has(object.spec.pytorchReplicaSpecs) ? "
    "object.spec.pytorchReplicaSpecs.map(r, object.spec.pytorchReplicaSpecs[r].template) : []) : "
    "[object.spec.template])"
)
_ALL = "(t.spec.containers + (has(t.spec.initContainers) ? t.spec.initContainers : []))"
_WHO = (
    "request.kind.kind + ' ' + (has(object.metadata.name) ? object.metadata.name : "
    "has(object.metadata.generateName) ? object.metadata.generateName : '')"
)
_QUEUE = (
    f"has(object.metadata.labels) && '{QUEUE_LABEL}' in object.metadata.labels ? "
    f"object.metadata.labels['{QUEUE_LABEL}'] : ''"
)


@dataclass(frozen=True, slots=True)
class _Rule:
    """One rule: kinds that it looks at, variables, and (expression, message) pairs in CEL."""

    name: str
    kinds: Sequence[str]
    checks: Sequence[tuple[str, str]]
    variables: Mapping[str, str]


def admission_objects(fleet: model.Fleet, *, labels: Mapping[str, str]) -> list[dict[str, Any]]:
    """Policies and then bindings of all rules that are not ignored; none where the site has no teams.

    Args:
        fleet: the description.
        labels: labels of every object.
    """
    if not fleet.teams:
        return []
    effects = {**DEFAULT_EFFECTS, **fleet.admission.rules}
    gpu = _gpu_test(fleet)
    pairs = [
        _objects(rule, gpu, effects[rule.name], labels) for rule in _rules(fleet, gpu) if effects[rule.name] != "ignore"
    ]
    return [policy for policy, _ in pairs] + [binding for _, binding in pairs]


def _objects(rule: _Rule, gpu: str, effect: str, labels: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, Any]]:
    metadata = {"name": f"myriad-{rule.name}", "labels": dict(labels)}
    has_gpus = f"{_TEMPLATES}.exists(t, {_ALL}.exists(c, {_asks(gpu)}))"
    policy = {
        "apiVersion": API,
        "kind": "ValidatingAdmissionPolicy",
        "metadata": metadata,
        "spec": {
            "failurePolicy": "Ignore",
            "matchConstraints": {
                "resourceRules": [{**_RESOURCES[kind], "operations": ["CREATE"], "scope": "*"} for kind in rule.kinds]
            },
            "matchConditions": [
                {"name": "by-a-person", "expression": f"!({_MADE_BY_CONTROLLER})"},
                {"name": "asks-for-gpus", "expression": has_gpus},
            ],
            "variables": [
                {"name": name, "expression": expression}
                for name, expression in {
                    "who": _WHO,
                    "queue": _QUEUE,
                    "templates": _TEMPLATES,
                    **rule.variables,
                }.items()
            ],
            "validations": [
                # Where the message itself cannot be made, the name of the rule is still said.
                {
                    "expression": test,
                    "message": f"refused by the rule {rule.name} of this site",
                    "messageExpression": said,
                }
                for test, said in rule.checks
            ],
        },
    }
    binding = {
        "apiVersion": API,
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": f"myriad-{rule.name}", "labels": dict(labels)},
        "spec": {
            "policyName": f"myriad-{rule.name}",
            "validationActions": ["Deny" if effect == "deny" else "Warn"],
            "matchResources": {"namespaceSelector": {"matchExpressions": [{"key": TEAM_LABEL, "operator": "Exists"}]}},
        },
    }
    return policy, binding


def _rules(fleet: model.Fleet, gpu: str) -> Iterable[_Rule]:
    everything = ("Pod", "Job", "PyTorchJob", "Service")
    training = sorted(name for name, pool in fleet.pools.items() if pool.use == "training")
    inference = sorted(name for name, pool in fleet.pools.items() if pool.use == "inference")
    yield _queue(fleet, everything)
    yield _gpu_limits(gpu, everything)
    if training:
        yield _whole_gpus(fleet, training, gpu, everything)
        yield from _leaving(training, gpu, fleet.preemption.grace_s)
    yield _gang(fleet)
    if inference:
        yield _inference(inference)
    yield from _time_limits(fleet)
    yield from _images(fleet, everything)


def _queue(fleet: model.Fleet, kinds: Sequence[str]) -> _Rule:
    pools = (
        f"has(namespaceObject.metadata.annotations) && '{POOLS_ANNOTATION}' in namespaceObject.metadata.annotations ? "
        f"namespaceObject.metadata.annotations['{POOLS_ANNOTATION}'].split(',') : []"
    )
    example = sorted(fleet.pools)[0] if fleet.pools else "POOL"
    return _Rule(
        "queue",
        kinds,
        [
            (
                "variables.queue != ''",
                "variables.who + ' asks for GPUs and names no queue: add the label "
                f"{QUEUE_LABEL}: ' + (size(variables.pools) > 0 ? variables.pools.join(' or ') : '{example}') + "
                "' to its metadata (' + (request.kind.kind == 'Pod' ? 'a pod' : 'the job itself, not its pod template')"
                " + ')'",
            ),
            (
                "variables.queue == '' || size(variables.pools) == 0 || variables.queue in variables.pools",
                "variables.who + ' names the queue \"' + variables.queue + '\", which namespace ' + "
                f"request.namespace + ' does not have: set the label {QUEUE_LABEL} to ' + variables.pools.join(' or ')",
            ),
            *_uncounted(fleet),
        ],
        {"pools": pools},
    )


def _uncounted(fleet: model.Fleet) -> list[tuple[str, str]]:
    """Checks that Kueue counts what names a queue. It holds a pod back by a gate, which its webhook sets before these
    rules are asked; without inference pools (and so without its integration of pods and services) it counts jobs only.
    """
    gated = f"has(object.spec.schedulingGates) && object.spec.schedulingGates.exists(g, g.name == '{ADMISSION_GATE}')"
    checks = [
        (
            f"request.kind.kind != 'Pod' || variables.queue == '' || ({gated})",
            "variables.who + ' names a queue, but Kueue does not count single pods here: make it a Job'",
        )
    ]
    if all(pool.use != "inference" for pool in fleet.pools.values()):
        checks.append(
            (
                "request.kind.kind in ['Pod', 'Job', 'PyTorchJob']",
                "variables.who + ' is a service with GPUs, and this site has no inference pool, so that nobody would "
                "count them: make it a Job, or describe a pool with use: inference'",
            )
        )
    return checks


def _gpu_limits(gpu: str, kinds: Sequence[str]) -> _Rule:
    bad = (
        "has(c.resources) && has(c.resources.requests) && c.resources.requests.exists(r, "
        f"{gpu} && (!has(c.resources.limits) || !(r in c.resources.limits) || "
        "string(c.resources.requests[r]) != string(c.resources.limits[r])))"
    )
    return _Rule(
        "gpu-limits",
        kinds,
        [
            (
                "size(variables.bad) == 0",
                "variables.who + ': container ' + variables.bad[0].name + ' requests another number of GPUs than it "
                "limits: write the same number in resources.requests and resources.limits, or the limit alone'",
            )
        ],
        {"bad": _offenders(bad)},
    )


def _whole_gpus(fleet: model.Fleet, training: Sequence[str], gpu: str, kinds: Sequence[str]) -> _Rule:
    allowed = {name: sorted(_counted(fleet, name)) for name in training}
    wrong = f"{gpu} && variables.queue in variables.whole && !(r in variables.whole[variables.queue])"
    parts = f"has(c.resources) && has(c.resources.limits) && c.resources.limits.exists(r, {wrong})"
    return _Rule(
        "whole-gpus",
        kinds,
        [
            (
                "size(variables.bad) == 0",
                "variables.who + ': container ' + variables.bad[0].name + ' asks for ' + "
                f"variables.bad[0].resources.limits.filter(r, {wrong})[0] + ', and pool ' + variables.queue + "
                "' is for training on whole GPUs: ask for ' + variables.whole[variables.queue].join(' or ')",
            )
        ],
        {"whole": _literal(allowed), "bad": _offenders(parts)},
    )


def _leaving(training: Sequence[str], gpu: str, grace_s: int) -> Iterable[_Rule]:
    with_gpus = f"{_ALL}.exists(c, {_asks(gpu)})"
    short = f"!has(t.spec.terminationGracePeriodSeconds) || t.spec.terminationGracePeriodSeconds < {grace_s}"
    yield _Rule(
        "grace",
        _BATCH,
        [
            (
                f"!(variables.queue in {_literal(training)}) || "
                f"!variables.templates.exists(t, {with_gpus} && ({short}))",
                f"variables.who + ' may be preempted and has less than {grace_s} s to save: set "
                f"terminationGracePeriodSeconds: {grace_s} in its pod template'",
            )
        ],
        {},
    )
    said = (
        f"has({{0}}.metadata) && has({{0}}.metadata.annotations) && '{HANDLES_SIGTERM}' in {{0}}.metadata.annotations "
        f"&& {{0}}.metadata.annotations['{HANDLES_SIGTERM}'] == 'true'"
    )
    deaf = f"{_asks(gpu)} && !(has(c.lifecycle) && has(c.lifecycle.preStop))"
    yield _Rule(
        "stop-signal",
        _BATCH,
        [
            (
                f"!(variables.queue in {_literal(training)}) || ({said.format('object')}) || "
                f"!variables.templates.exists(t, !({said.format('t')}) && {_ALL}.exists(c, {deaf}))",
                "variables.who + ' may be preempted and does not say how it stops: save on SIGTERM and set the "
                f'annotation {HANDLES_SIGTERM}: "true", or give its containers a preStop hook\'',
            )
        ],
        {},
    )


def _gang(fleet: model.Fleet) -> _Rule:
    volcano = _literal(sorted(name for name, pool in fleet.pools.items() if pool.engine == "volcano"))
    replicas = "object.spec.pytorchReplicaSpecs"
    total = (
        f"request.kind.kind == 'PyTorchJob' ? (has({replicas}) ? {replicas}.map(r, has({replicas}[r].replicas) ? "
        f"int({replicas}[r].replicas) : 1).sum() : 0) : "
        "(has(object.spec.parallelism) ? int(object.spec.parallelism) : 1)"
    )
    policy = "object.spec.runPolicy.schedulingPolicy"
    noted = "has(object.metadata.annotations) && '{0}' in object.metadata.annotations"
    minimum = (
        f"request.kind.kind == 'PyTorchJob' ? (has(object.spec.runPolicy) && has({policy}) && "
        f"has({policy}.minAvailable) ? int({policy}.minAvailable) : 0) : ({noted.format(GROUP_MIN_MEMBER)} && "
        f"object.metadata.annotations['{GROUP_MIN_MEMBER}'].matches('^[0-9]{{1,6}}$') ? "
        f"int(object.metadata.annotations['{GROUP_MIN_MEMBER}']) : 0)"
    )
    # An elastic job starts with fewer on purpose and says with how many.
    least = (
        "request.kind.kind == 'PyTorchJob' ? (has(object.spec.elasticPolicy) && "
        "has(object.spec.elasticPolicy.minReplicas) ? int(object.spec.elasticPolicy.minReplicas) : variables.total) : "
        f"({noted.format(MIN_PARALLELISM)} && "
        f"object.metadata.annotations['{MIN_PARALLELISM}'].matches('^[0-9]{{1,6}}$')"
        f" ? int(object.metadata.annotations['{MIN_PARALLELISM}']) : variables.total)"
    )
    field = (
        "(request.kind.kind == 'PyTorchJob' ? 'spec.runPolicy.schedulingPolicy.minAvailable: ' + "
        f"string(variables.least) : 'the annotation {GROUP_MIN_MEMBER}: \"' + string(variables.least) + '\"')"
    )
    return _Rule(
        "gang",
        _BATCH,
        [
            (
                f"!(variables.queue in {volcano}) || variables.total < 2 || variables.minimum > 0",
                "variables.who + ' is a gang of ' + string(variables.total) + ' pods and does not say how many of them "
                f"must start together: set ' + {field}",
            ),
            (
                "variables.minimum == 0 || variables.minimum == variables.least",
                "variables.who + ' is a gang of ' + string(variables.total) + ' pods of which ' + "
                "string(variables.minimum) + ' must start together: it would hold GPUs in part, or never start; set ' "
                f"+ {field}",
            ),
        ],
        {"total": total, "minimum": minimum, "least": least},
    )


def _inference(inference: Sequence[str]) -> _Rule:
    said = (
        f"has(object.metadata.annotations) && '{USE}' in object.metadata.annotations && "
        f"object.metadata.annotations['{USE}'] == 'inference'"
    )
    return _Rule(
        "inference-queue",
        _BATCH,
        [
            (
                f"!(variables.queue in {_literal(inference)}) || ({said})",
                "variables.who + ' is a batch job in pool ' + variables.queue + ', which is kept for inference "
                f"services: use the queue of a training pool, or set the annotation {USE}: inference'",
            )
        ],
        {},
    )


def _time_limits(fleet: model.Fleet) -> Iterable[_Rule]:
    given = f"has(object.metadata.labels) && '{TIME_LABEL}' in object.metadata.labels"
    refused = sorted(name for name, pool in fleet.pools.items() if pool.without_limit == "refuse")
    most = {n: int(p.max_hours * 3600) for n, p in sorted(fleet.pools.items()) if p.max_hours is not None}
    checks = []
    if refused:
        checks.append(
            (
                f"!(variables.queue in {_literal(refused)}) || variables.given",
                "variables.who + ' has no time limit, and pool ' + variables.queue + ' takes no job without one: add "
                f'the label {TIME_LABEL}: "SECONDS"\'',
            )
        )
    if most:
        checks.append(
            (
                f"!variables.given || !(variables.queue in variables.most) || "
                f"!object.metadata.labels['{TIME_LABEL}'].matches('^[0-9]{{1,12}}$') || "
                f"int(object.metadata.labels['{TIME_LABEL}']) <= variables.most[variables.queue]",
                "variables.who + ' asks for ' + "
                f"object.metadata.labels['{TIME_LABEL}'] + ' s, and pool ' + variables.queue + ' allows ' + "
                f"string(variables.most[variables.queue]) + ' s: lower the label {TIME_LABEL}'",
            )
        )
    if checks:
        yield _Rule("time-limit", _BATCH, checks, {"given": given, "most": _literal(most)})
    default = {
        n: f"{float(p.default_hours):g}"
        for n, p in sorted(fleet.pools.items())
        if p.default_hours is not None and p.without_limit == "default"
    }
    if default:
        yield _Rule(
            "time-limit-default",
            _BATCH,
            [
                (
                    "variables.given || !(variables.queue in variables.hours)",
                    "variables.who + ' has no time limit and gets that of pool ' + variables.queue + ': ' + "
                    f"variables.hours[variables.queue] + ' h; set the label {TIME_LABEL} for another'",
                )
            ],
            {"given": given, "hours": _literal(default)},
        )


def _images(fleet: model.Fleet, kinds: Sequence[str]) -> Iterable[_Rule]:
    tests = {
        "image-tag": (
            "!c.image.contains('@') && (c.image.endsWith(':latest') || !c.image.matches('^(.*/)?[^/:]+:[^/:]+$'))",
            "', which moves: two pods of one gang may run different programs; name it by digest (NAME@sha256:...), as "
            "`myriad image push` prints it'",
        ),
        "image-registry": (
            "!(" + " || ".join(f"c.image.startsWith('{one}/')" for one in fleet.admission.registries) + ")",
            "', which is not of this site: nodes may not reach it, and it is not warm; push it to "
            f"{fleet.admission.registries[0] if fleet.admission.registries else 'the registry'} (`myriad image push`)'",
        ),
        "image-digest": (
            "!c.image.matches('@sha256:[0-9a-f]{64}$')",
            "', a tag that can be moved: name it by digest (NAME@sha256:...), as `myriad image push` prints it'",
        ),
    }
    for name, (test, said) in tests.items():
        if name == "image-registry" and not fleet.admission.registries:
            continue
        bad = f"has(c.image) && {test}"
        yield _Rule(
            name,
            kinds,
            [
                (
                    "size(variables.bad) == 0",
                    "variables.who + ': container ' + variables.bad[0].name + ' runs ' + variables.bad[0].image + "
                    + said,
                )
            ],
            {"bad": _offenders(bad)},
        )


def _offenders(test: str) -> str:
    """The first container of each template that a test of `c` finds."""
    return f"variables.templates.filter(t, {_ALL}.exists(c, {test})).map(t, {_ALL}.filter(c, {test})[0])"


def _asks(gpu: str) -> str:
    """Whether container `c` asks for a GPU."""
    return (
        f"has(c.resources) && ((has(c.resources.limits) && c.resources.limits.exists(r, {gpu})) || "
        f"(has(c.resources.requests) && c.resources.requests.exists(r, {gpu})))"
    )


def _gpu_test(fleet: model.Fleet) -> str:
    """Whether resource `r` is a GPU or a part of one: as the pools call them, or as vendors do."""
    named = sorted({resource for pool in fleet.pools for resource in _counted(fleet, pool)})
    return f"(r in {_literal(named)} || r.matches('^[^/]+/(gpu|mig-|vgpu)'))"


def _counted(fleet: model.Fleet, pool_name: str) -> set[str]:
    pool = fleet.pools[pool_name]
    return set(
        mig.shares_per_gpu(
            pool.mig,
            hosts={host.name: host.gpus for host in fleet.hosts_by_pool.get(pool_name, ())},
            gpus=pool.gpus_per_node,
            resource=pool.resource,
            replicas=pool.sharing.replicas,
        )
    )


def _literal(value: Any) -> str:
    """A value as CEL writes it. Texts are names of the description: letters, digits and a few marks."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_literal(key)}: {_literal(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_literal(inner) for inner in value) + "]"
    if isinstance(value, int):
        return str(value)
    return "'" + str(value).replace("\\", "\\\\").replace("'", "\\'") + "'"
