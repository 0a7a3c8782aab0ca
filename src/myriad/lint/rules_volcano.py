"""Rules about Volcano: scheduler configuration, queues, PodGroups. Pure.

Names of actions and plugins are those of Volcano 1.15.1.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal

from myriad.errors import InputError
from myriad.fleet.names import closest
from myriad.lint.documents import VOLCANO_CONFIGURATION, Document, is_volcano_configuration
from myriad.lint.rule import Raw, rule
from myriad.lint.scene import Json, KeyPath, Scene, Thing, mapping, number, plain, rows, text, thing_of

ACTIONS = ("enqueue", "allocate", "backfill", "preempt", "reclaim", "shuffle", "gangpreempt", "gangreclaim")
EVICTING = ("preempt", "reclaim", "shuffle", "gangpreempt", "gangreclaim")
PLUGINS = (
    "binpack",
    "capacity",
    "cdp",
    "conformance",
    "deviceshare",
    "drf",
    "extender",
    "gang",
    "network-topology-aware",
    "nodegroup",
    "nodeorder",
    "numa-aware",
    "overcommit",
    "pdb",
    "predicates",
    "priority",
    "proportion",
    "rescheduling",
    "resource-strategy-fit",
    "resourcequota",
    "sla",
    "task-topology",
    "tdm",
    "usage",
)
CONFIGURATION_MAP = "ConfigMap, scheduler configuration of Volcano"
DEFAULT_OVERCOMMIT = Decimal("1.2")


def configurations(scene: Scene) -> list[tuple[Thing, Thing]]:
    """Volcano's scheduler configurations: the configuration itself, and the object that holds it (a ConfigMap, or
    itself)."""
    kept = scene.recall("volcano_configurations")
    if kept is None:
        found: list[tuple[Thing, Thing]] = [(thing, thing) for thing in scene.of(VOLCANO_CONFIGURATION)]
        for holder in scene.of("ConfigMap"):
            for key, value in mapping(holder.body, "data").items():
                if (
                    not isinstance(value, str)
                    or "actions" not in value
                    or not str(key).endswith((".conf", ".yaml", ".yml"))
                ):
                    continue
                try:
                    inner = holder.document.inner(("data", key), value)
                except InputError:
                    continue  # `unreadable-configuration` says so.
                found += [(_inside(holder, d), holder) for d in inner if is_volcano_configuration(d.body)]
        kept = scene.remember("volcano_configurations", found)
    return list(kept)


def _inside(holder: Thing, document: Document) -> Thing:
    inner = thing_of(document, given=holder.given)
    return (
        Thing(document, holder.kind, holder.group, holder.name, holder.namespace, holder.given) if inner.kind else inner
    )


def actions_of(configuration: Thing) -> list[str]:
    """Its actions in order."""
    return [name.strip() for name in text(configuration.body, "actions").split(",") if name.strip()]


def plugins_of(configuration: Thing) -> list[tuple[KeyPath, Json]]:
    """Its plugins over all tiers."""
    return [
        (("tiers", t, "plugins", p), plugin)
        for t, tier in rows(configuration.body, "tiers")
        for p, plugin in rows(tier, "plugins")
    ]


def _evicts(configuration: Thing) -> list[str]:
    return [name for name in actions_of(configuration) if name in EVICTING]


@rule(
    "volcano-unknown-action",
    "error",
    "an action that Volcano does not know",
    looks_at=CONFIGURATION_MAP,
    sources=("volcano#5827", "volcano#4660"),
)
def volcano_unknown_action(scene: Scene) -> Iterator[Raw]:
    """One unknown name and the whole file is thrown away: Volcano goes on with the last good one or its built-in
    default, and says so in one line of its log."""
    for configuration, _ in configurations(scene):
        names = actions_of(configuration)
        if not names:
            yield Raw(
                configuration,
                ("actions",),
                "has no actions: Volcano schedules nothing, or takes its built-in default",
                'write actions: "enqueue, allocate, backfill"',
            )
        elif "allocate" not in names:
            yield Raw(
                configuration,
                ("actions",),
                "has no action allocate: no pod is ever bound",
                'write actions: "enqueue, allocate, backfill"',
            )
        for name in names:
            if name not in ACTIONS:
                best = closest(name, ACTIONS)
                yield Raw(
                    configuration,
                    ("actions",),
                    f"has the action {name!r}, which Volcano does not know: it throws the whole configuration away "
                    "and goes on with the last one, or with its default, in silence",
                    f"write {best}" if best else f"use only {', '.join(ACTIONS)}",
                )


@rule(
    "volcano-unknown-plugin",
    "error",
    "a plugin that Volcano does not know",
    looks_at=CONFIGURATION_MAP,
    sources=("volcano#5827",),
)
def volcano_unknown_plugin(scene: Scene) -> Iterator[Raw]:
    """It is skipped with one line in the log: without `gang` there is no gang, without `predicates` no taint is
    looked at."""
    for configuration, _ in configurations(scene):
        for path, plugin in plugins_of(configuration):
            name = text(plugin, "name")
            if name in PLUGINS:
                continue
            best = closest(name, PLUGINS)
            yield Raw(
                configuration,
                (*path, "name") if name else path,
                f"has the plugin {name!r}, which Volcano does not know: it is skipped with one line in the log"
                if name
                else "has a plugin without a name: it is skipped",
                f"write {best}"
                if best
                else "correct the name (a plugin of your own has to be built into the scheduler)",
                None if best or not name else "warning",
            )


@rule(
    "volcano-second-preemptor",
    "error",
    "Volcano evicts while Kueue is the ledger",
    looks_at=f"{CONFIGURATION_MAP}; ClusterQueue",
    sources=("volcano#4648", "volcano#2612", "volcano#5330"),
)
def volcano_second_preemptor(scene: Scene) -> Iterator[Raw]:
    """Kueue sees a pod that failed, not an eviction: it keeps the quota, and the job uses up its retries."""
    for configuration, _ in configurations(scene):
        on = _evicts(configuration)
        if on and scene.kueue:
            yield Raw(
                configuration,
                ("actions",),
                f"lets Volcano evict ({', '.join(on)}) what Kueue has admitted: Kueue takes it for a failed pod, "
                "keeps the quota, and the job uses up its retries",
                'write actions: "enqueue, allocate, backfill"; Kueue is the only preemptor',
            )
        both = [(a, b) for a, b in (("preempt", "gangpreempt"), ("reclaim", "gangreclaim")) if a in on and b in on]
        if both and not scene.kueue:
            yield Raw(
                configuration,
                ("actions",),
                f"has {both[0][0]} and {both[0][1]}, which must not run together: they evict for the same job twice",
                "keep one of them",
            )


@rule(
    "volcano-overcommit",
    "warning",
    "Volcano promises more than there is",
    looks_at=CONFIGURATION_MAP,
    sources=("volcano#2052", "volcano#5001", "volcano#4235"),
)
def volcano_overcommit(scene: Scene) -> Iterator[Raw]:
    """With a factor above 1 more PodGroups become Inqueue than fit: small low ones pass a large high one, and
    behind Kueue it adds nothing but pending pods."""
    for configuration, _ in configurations(scene):
        for path, plugin in plugins_of(configuration):
            if text(plugin, "name") != "overcommit":
                continue
            value = mapping(plugin, "arguments").get("overcommit-factor")
            factor = number(value) if value is not None else DEFAULT_OVERCOMMIT
            if factor is not None and factor > 1:
                shown = f"{plain(factor)}" + ("" if value is not None else ", the default")
                yield Raw(
                    configuration,
                    (*path, "arguments", "overcommit-factor") if value is not None else (*path, "name"),
                    f"overcommits the cluster (overcommit-factor {shown}): PodGroups are let in for which there is no "
                    "room, and small ones pass the large one that waits",
                    "set arguments: {overcommit-factor: 1.0}, or take the plugin out where Kueue counts quota",
                )


@rule(
    "volcano-gang-blocks-victims",
    "warning",
    "the gang plugin protects every victim",
    looks_at=CONFIGURATION_MAP,
    sources=("volcano#3332", "volcano#2321", "volcano#4607"),
)
def volcano_gang_blocks_victims(scene: Scene) -> Iterator[Raw]:
    """enablePreemptable is on by default: the gang plugin then refuses each victim whose gang would fall below its
    minimum, so preempt and reclaim find nobody; set off, whole gangs can be victims."""
    for configuration, _ in configurations(scene):
        on = _evicts(configuration)
        for path, plugin in plugins_of(configuration):
            if on and text(plugin, "name") == "gang" and plugin.get("enablePreemptable") is not False:
                yield Raw(
                    configuration,
                    (*path, "enablePreemptable") if "enablePreemptable" in plugin else (*path, "name"),
                    f"runs {', '.join(on)} with enablePreemptable of the gang plugin "
                    f"on{'' if 'enablePreemptable' in plugin else ' (the default)'}: no pod of a gang at its minimum "
                    "may be a victim, so nothing is preempted",
                    "set enablePreemptable: false on the gang plugin",
                )


@rule(
    "volcano-two-shares",
    "error",
    "two plugins that share out the cluster",
    looks_at=CONFIGURATION_MAP,
    sources=("volcano#3869", "volcano#4479"),
)
def volcano_two_shares(scene: Scene) -> Iterator[Raw]:
    """proportion works by weights and capacity by amounts; together each refuses what the other grants."""
    for configuration, _ in configurations(scene):
        found = {text(plugin, "name"): path for path, plugin in plugins_of(configuration)}
        if "proportion" in found and "capacity" in found:
            yield Raw(
                configuration,
                (*found["capacity"], "name"),
                "has proportion and capacity: each refuses what the other grants",
                "keep one (proportion with one neutral queue)",
            )
        if sum(text(p, "name") == "extender" for _, p in plugins_of(configuration)) > 1:
            yield Raw(configuration, (*found["extender"], "name"), "has two extenders: Volcano takes one", "keep one")


@rule(
    "volcano-extender",
    "error",
    "a Volcano extender that stops scheduling when it is down",
    looks_at=CONFIGURATION_MAP,
    sources=("volcano's extender plugin",),
)
def volcano_extender(scene: Scene) -> Iterator[Raw]:
    """jobReady answers "not ready" when an ignorable extender is down; onSessionOpen sends the whole cluster each
    second and, where it is not ignorable, switches every callback off in silence; predicate is called for each pod and
    node."""
    for configuration, _ in configurations(scene):
        for path, plugin in plugins_of(configuration):
            if text(plugin, "name") != "extender":
                continue
            arguments = mapping(plugin, "arguments")
            ignorable = str(arguments.get("extender.ignorable", "false")).lower() == "true"
            at: KeyPath = (*path, "arguments")
            if "extender.jobReadyVerb" in arguments and ignorable:
                yield Raw(
                    configuration,
                    (*at, "extender.jobReadyVerb"),
                    "asks an ignorable extender whether jobs are ready: while it is down no job is ready, and "
                    "nothing is bound",
                    "take jobReadyVerb out",
                )
            if "extender.onSessionOpenVerb" in arguments:
                yield Raw(
                    configuration,
                    (*at, "extender.onSessionOpenVerb"),
                    "sends the whole cluster to its extender at every session (hundreds of MB at 10,000 pods)"
                    + (
                        ""
                        if ignorable
                        else ", and when it does not answer, all its filters are off for that session in silence"
                    ),
                    "take onSessionOpenVerb out; let the extender watch the API server",
                    "warning" if ignorable else None,
                )
            for verb in ("predicateVerb", "jobEnqueueableVerb"):
                if f"extender.{verb}" in arguments:
                    many = "each pod and node" if verb == "predicateVerb" else "each pending PodGroup"
                    yield Raw(
                        configuration,
                        (*at, f"extender.{verb}"),
                        f"calls its extender for {many}, without a circuit breaker: when it is down, each call costs "
                        f"{arguments.get('extender.httpTimeout', '1s')} of the session",
                        f"take {verb} out, or keep httpTimeout at a few milliseconds",
                        "warning",
                    )
