"""What a person asks for with `myriad job new`, checked as a whole. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from myriad import quantity
from myriad.errors import InputError
from myriad.lint.rules_quantities import device_meant, implausible

Form = Literal["pytorch", "batch"]
FORMS: tuple[Form, ...] = ("pytorch", "batch")
Engine = Literal["kueue", "volcano"]

#: A name becomes a part of host names (NAME-0.NAME), so that it is shorter than Kubernetes would have it.
NAME_LIMIT = 52
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_DIGEST = re.compile(r"[^@\s]+@sha256:[0-9a-f]{64}")
_INTERVAL = re.compile(r"(?:\d+h)?(?:\d+m)?(?:\d+s)?")
#: An image that nobody has named yet: a template can be shown with it, and is refused when it is submitted.
UNNAMED_DIGEST = "sha256:" + "0" * 64
UNNAMED_IMAGE = f"registry.myriad.internal/YOUR-TEAM/YOUR-IMAGE@{UNNAMED_DIGEST}".lower()
_RESOURCE = re.compile(r"[a-z0-9.-]+/[A-Za-z0-9._-]+")
_MAX_HOURS = 24 * 366
#: Above these a figure is a slip of the finger: no cluster has so many nodes, no machine so many cards.
_MAX_NODES, _MAX_GPUS = 100_000, 256
_LONGEST = 32
#: Ports of torchrun's rendezvous.
PORT = 29500


@dataclass(frozen=True, slots=True)
class PoolFacts:
    """What is known of the pool that a job goes to; the defaults are those of a description.

    Attributes:
        resource: the device that its nodes offer.
        gpus_per_node: devices of a node; None where nothing is known.
        engine: who places its pods.
        level: label key of the innermost topology level, "" for none.
        volcano_queue: the queue of a `volcano` pool.
    """

    resource: str = "nvidia.com/gpu"
    gpus_per_node: int | None = None
    engine: Engine = "kueue"
    level: str = "myriad.dev/rack"
    volcano_queue: str = "myriad"


@dataclass(frozen=True, slots=True)
class Request:
    """A job as it is wished for.

    Attributes:
        form: `pytorch` or `batch`.
        nodes: pods; an elastic job runs with `minimum` to `nodes`.
        minimum: the smallest number of pods of an elastic job; None = all or nothing.
        gpus: devices of each pod.
        hours: time limit; None = none.
        image: by digest.
        command: argv; () leaves it to the image.
        checkpoint_interval: as `30m`.
        grace_s: seconds between SIGTERM and the kill.
        checkpoint_claim: PersistentVolumeClaim for checkpoints; "" = they go with the pod.
        env: further variables.
        cpu, memory: of each pod, requests and limits alike; "" for what the namespace gives.
    """

    form: Form
    name: str
    namespace: str
    queue: str
    nodes: int
    gpus: int
    image: str
    minimum: int | None = None
    hours: Fraction | None = None
    priority: str = ""
    command: tuple[str, ...] = ()
    checkpoint_interval: str = "30m"
    grace_s: int = 300
    cpu: str = ""
    memory: str = ""
    checkpoint_claim: str = ""
    env: tuple[tuple[str, str], ...] = ()
    pool: PoolFacts = PoolFacts()

    @property
    def limit_s(self) -> int | None:
        """The time limit in whole seconds."""
        return None if self.hours is None else int(self.hours * 3600)


def checked(request: Request) -> Request:
    """The request, or everything that is wrong with it.

    Raises:
        InputError: it cannot be rendered; names all reasons.
    """
    wrong = list(_wrong(request))
    if wrong:
        raise InputError(
            "\n".join(wrong) if len(wrong) > 1 else wrong[0],
            where=f"job {request.name}",
            hint="`myriad job new --help` explains each option",
        )
    return request


def _wrong(request: Request) -> list[str]:
    wrong = []
    for what, value, limit in (("--name", request.name, NAME_LIMIT), ("namespace", request.namespace, 63)):
        if not _NAME.fullmatch(value) or len(value) > limit:
            wrong.append(
                f"{what} {value!r} is no name: up to {limit} lower-case letters, digits and dashes, no dash at an end"
            )
    if request.nodes < 1:
        wrong.append(f"--nodes is {request.nodes}; a job has 1 node or more")
    elif request.nodes > _MAX_NODES:
        wrong.append(f"--nodes is {request.nodes}; a job has {_MAX_NODES:,} nodes at most")
    if request.gpus < 1:
        wrong.append(f"--gpus is {request.gpus}; a pod has 1 GPU or more (a job without GPUs needs no template)")
    elif request.gpus > _MAX_GPUS:
        wrong.append(f"--gpus is {request.gpus}; a pod has {_MAX_GPUS} GPUs at most, those of one node")
    most = request.pool.gpus_per_node
    if most is not None and request.gpus > most:
        wrong.append(
            f"--gpus {request.gpus}: no node of pool {request.queue} has {request.gpus} GPUs ({most} at most); ask "
            f"for more nodes with {most} or fewer each"
        )
    if not _RESOURCE.fullmatch(request.pool.resource):
        wrong.append(f"--resource {request.pool.resource!r} is no resource name, such as nvidia.com/gpu")
    elif meant := device_meant(request.pool.resource):
        wrong.append(f"--resource {request.pool.resource}: the device is called {meant}; no node offers another name")
    if "/mig-" in request.pool.resource and (request.nodes > 1 or request.gpus > 1):
        wrong.append(
            f"{request.pool.resource} is a slice of a card: slices do not reach each other, so a job has one pod with "
            "one"
        )
    if request.checkpoint_claim and not _NAME.fullmatch(request.checkpoint_claim.replace(".", "-")):
        wrong.append(f"--checkpoint-claim {request.checkpoint_claim!r} is no name of a PersistentVolumeClaim")
    if not _DIGEST.fullmatch(request.image):
        wrong.append(
            f"--image {request.image!r} is not named by digest (NAME@sha256:<64 hex digits>); a tag can mean another "
            "image on every node. `myriad image push` prints the digest"
        )
    if request.hours is not None and not 0 < request.hours <= _MAX_HOURS:
        wrong.append(f"--hours is {float(request.hours):g}; it is more than 0 and at most {_MAX_HOURS}")
    if not request.checkpoint_interval or not _INTERVAL.fullmatch(request.checkpoint_interval):
        wrong.append(
            f"--checkpoint-interval {request.checkpoint_interval!r} is no time; write it as 30m, 1h30m or 900s"
        )
    for name, _ in request.env:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            wrong.append(f"--env {name!r} is no name of a variable; write NAME=VALUE")
    for option, amount in (("--cpu", request.cpu), ("--memory", request.memory)):
        if amount and not _positive(amount):
            wrong.append(f"{option} {amount!r} is no quantity above 0; write 8, 500m or 64Gi")
        elif amount:
            reading, change = implausible(option.removeprefix("--"), amount, quantity.parse(amount), by_pod=True)
            if reading:
                wrong.append(f"{option} {amount} is {reading}; {change}")
    return wrong + _wrong_elastic(request)


def _positive(text: str) -> bool:
    try:
        return quantity.parse(text) > 0
    except ValueError:
        return False


def _wrong_elastic(request: Request) -> list[str]:
    if request.minimum is None:
        return []
    wrong = []
    if request.form == "pytorch":
        wrong.append(
            "--elastic: a PyTorchJob cannot be elastic here. Kueue has a minimum for batch Jobs only: it would admit "
            "the whole PyTorchJob or nothing, and nobody would honour its elasticPolicy. `myriad job new batch "
            "--elastic` runs the same torchrun with what it gets"
        )
    if not 0 < request.minimum < request.nodes:
        wrong.append(
            f"--elastic {request.minimum}:{request.nodes}: the minimum is 1 or more and below the maximum; without a "
            "range leave --elastic out"
        )
    return wrong


def parse_elastic(text: str) -> tuple[int, int]:
    """`4:8` as (4, 8).

    Raises:
        InputError: it is no range.
    """
    low, colon, high = text.partition(":")
    if len(text) > _LONGEST or not (colon and low.isascii() and high.isascii() and low.isdigit() and high.isdigit()):
        raise InputError(f"--elastic {text!r} is no range", hint="write MIN:MAX, such as 4:8")
    return int(low), int(high)


def parse_hours(text: str) -> Fraction:
    """`12`, `0.5` or `1h30m` as hours.

    Raises:
        InputError: it is no time.
    """
    # An exponent would be written out digit by digit, and it is no way to say hours.
    if len(text) <= _LONGEST and "e" not in text.lower():
        try:
            return Fraction(text)
        except (ValueError, ZeroDivisionError):
            pass
    found = re.fullmatch(r"(?:(\d{1,9})h)?(?:(\d{1,9})m)?", text)
    if not found or not any(found.groups()):
        raise InputError(f"--hours {text!r} is no time", hint="write hours, such as 12, 0.5 or 1h30m")
    return Fraction(int(found[1] or 0)) + Fraction(int(found[2] or 0), 60)
