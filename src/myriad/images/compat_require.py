"""NVIDIA_REQUIRE_CUDA: the condition under which the container runtime starts an image, computed from its real need.

Syntax, from `src/cli/dsl.c` of https://github.com/NVIDIA/libnvidia-container: alternatives are separated by blanks, the
conditions of one by commas; a condition is `cuda`, `driver`, `arch` or `brand`, one of = != < <= > >=, and a value.
It is asked for each visible GPU. nvidia-container-toolkit (`internal/requirements`) reads the same text with Go's
semver, which refuses leading zeros: a bound is written 580.65.6, and both read it as 580.65.06.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import zip_longest

from myriad.images.compat_facts import (
    Facts,
    Interval,
    at_least,
    cubin_intervals,
    dotted,
    major,
    minor,
    newest,
    ptx_interval,
)
from myriad.images.compat_facts import (
    facts as own_facts,
)
from myriad.images.compat_rules import capabilities
from myriad.images.compat_types import ImageFacts

VARIABLE = "NVIDIA_REQUIRE_CUDA"
DATA_CENTER_BRANDS = ("tesla", "nvidia")
"""What the driver calls data-centre boards: "Tesla" on old drivers, "NVIDIA" since. Others are NVIDIA RTX, Quadro,
Quadro RTX, GeForce, GeForce RTX or Titan, lower case and without blanks (internal/requirements/image.go)."""

_CONDITION = re.compile(r"(?P<key>[^<>=!]+)(?P<operator>[<>=!]+)(?P<value>.*)")
_OPERATORS = ("=", "!=", "<", "<=", ">", ">=")


@dataclass(frozen=True, slots=True)
class Host:
    """What the runtime compares with: a driver with the CUDA level that it reports, and one GPU."""

    cuda: str
    driver: str
    arch: str
    brand: str


def require_cuda(image: ImageFacts, facts: Facts | None = None) -> str:
    """The condition for an image; empty for one without CUDA.

    Raises:
        ValueError: the facts have no family floor for its CUDA, or do not say what it is compiled for.
    """
    table = facts or own_facts()
    if not image.needs_gpu:
        return ""
    floor, own = table.family_floor(image.cuda), table.native_driver(image.cuda)
    compiled = capabilities(image, table)
    if floor is None or not compiled:
        missing = "a driver floor for it" if floor is None else "what it is compiled for"
        raise ValueError(f"{image.what}: the facts do not have {missing}, so there is no {VARIABLE}")
    if image.cuda_compat and own is None:
        raise ValueError(f"{image.what}: from which driver its cuda-compat is, is not known: no {VARIABLE}")
    level = f"cuda>={major(image.cuda)}.0"
    # CUDA 11.0 itself came with a driver older than the one from which all of 11.x runs.
    least = floor if own is None or at_least(own, floor) else own
    if image.cuda_compat and own is not None:
        # A driver of an older branch gets the package's libraries instead of its own.
        least = newest(least, f"{major(own)}.0")
    cubins, ptx = cubin_intervals(compiled), ptx_interval(compiled)
    told = [",".join((level, _driver(least), *_arch(span))) for span in cubins]
    if ptx is not None and own is not None:
        beyond = _beyond(ptx, cubins)
        told += [",".join((f"cuda>={minor(image.cuda)}", _driver(own), *_arch(span))) for span in beyond]
    row = table.forward_row(image.cuda) if image.cuda_compat else None
    for branch in row.branches if row is not None else ():
        for brand in DATA_CENTER_BRANDS:
            told += [
                ",".join((f"brand={brand}", f"driver>={branch}", f"driver<{branch + 1}", *_arch(span)))
                for span in (*cubins, *((ptx,) if ptx else ()))
            ]
    return " ".join(told)


def why_require(image: ImageFacts, facts: Facts | None = None) -> str:
    """Why the condition is not the stricter one of NVIDIA's own images, as a sentence."""
    table = facts or own_facts()
    if not image.needs_gpu:
        return "without CUDA there is nothing to require"
    cuda, floor, own = minor(image.cuda), table.family_floor(image.cuda), table.native_driver(image.cuda)
    vendor = f"cuda>={cuda}" + (f" (driver >= {own})" if own else "")
    if image.cuda_compat:
        return f"NVIDIA's images of CUDA {cuda} ask for {vendor} or, for cuda-compat, one of its branches; so does this"
    cards = "its arch conditions also refuse cards that it has no code for, before a job starts"
    if floor is None or own is None or at_least(floor, own):
        return f"the driver that NVIDIA's images of CUDA {cuda} ask for, {vendor}; {cards}"
    return f"NVIDIA's images of CUDA {cuda} ask for {vendor}, but {major(image.cuda)}.x runs from {floor} on; {cards}"


def vendor_require(cuda: str, brands: tuple[str, ...] = ("tesla",), facts: Facts | None = None) -> str:
    """The condition that NVIDIA's own images of a CUDA release carry, as far as its branches were read."""
    row = (facts or own_facts()).forward_row(cuda)
    older = [
        f"brand={brand},driver>={branch},driver<{branch + 1}"
        for brand in brands
        for branch in (row.branches if row is not None else ())
    ]
    return " ".join((f"cuda>={minor(cuda)}", *older))


def satisfied(condition: str, host: Host) -> bool:
    """Would the container runtime start an image with this condition on that host?

    Raises:
        ValueError: "invalid expression", as the runtime says it: unknown key or operator, no value, a version with
            letters, or an order between brands.
    """
    answer = True
    for alternative in condition.split(" "):
        if not alternative:
            continue
        answer = True
        for part in alternative.split(","):
            if part and not _holds(part, host):
                answer = False
                break
        if answer:
            break
    return answer


def faults_for_semver(condition: str) -> list[str]:
    """Values that the Go half of the container toolkit refuses: more than three parts, or leading zeros."""
    values = [
        match["value"]
        for part in re.split(r"[ ,]+", condition)
        if (match := _CONDITION.fullmatch(part)) and match["key"] != "brand"
    ]
    return [value for value in values if not re.fullmatch(r"(0|[1-9]\d*)(\.(0|[1-9]\d*)){0,2}", value)]


def _holds(part: str, host: Host) -> bool:
    match = _CONDITION.fullmatch(part)
    if match is None or match["operator"] not in _OPERATORS or not match["value"]:
        raise ValueError(f"invalid expression: {part}")
    key, operator, value = match["key"].lower(), match["operator"], match["value"]
    if key == "brand":
        if operator not in ("=", "!="):
            raise ValueError(f"invalid expression: {part}: brands have no order")
        return (host.brand.lower() == value.lower()) == (operator == "=")
    if key not in ("cuda", "driver", "arch"):
        raise ValueError(f"invalid expression: {part}")
    order = _compare(str(getattr(host, key)), value)
    return {
        "=": order == 0,
        "!=": order != 0,
        "<": order < 0,
        "<=": order <= 0,
        ">": order > 0,
        ">=": order >= 0,
    }[operator]


def _compare(left: str, right: str) -> int:
    for one, other in zip_longest(dotted(left), dotted(right), fillvalue=0):
        if one != other:
            return -1 if one < other else 1
    return 0


def _driver(version: str) -> str:
    return "driver>=" + ".".join(map(str, dotted(version)))


def _arch(span: Interval) -> tuple[str, ...]:
    low, high = span
    return (f"arch>={low}",) if high is None else (f"arch>={low}", f"arch<{high}")


def _beyond(ptx: Interval, cubins: tuple[Interval, ...]) -> tuple[Interval, ...]:
    """What of the reach of PTX no compiled code covers."""
    left: list[Interval] = []
    low = ptx[0]
    for start, end in cubins:
        if end is None or at_least(low, end):
            continue
        if not at_least(low, start):
            left.append((low, start))
        low = end
    return (*left, (low, None))
