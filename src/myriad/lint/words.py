"""Words that rules share. Pure."""

from __future__ import annotations

from decimal import Decimal

from myriad.lint.scene import plain
from myriad.lint.works import Work

JOBS = (
    "Job, CronJob, PyTorchJob and its like, TrainJob, JobSet, vcjob, Ray, Deployment, StatefulSet, LeaderWorkerSet, Pod"
)


def gpus_words(work: Work) -> str:
    """`72 GPUs`, `16 huawei.com/Ascend910`: all accelerators of a job."""
    amounts = work.accelerators
    if list(amounts) == ["nvidia.com/gpu"]:
        return f"{amounts['nvidia.com/gpu']:,} GPU{'' if amounts['nvidia.com/gpu'] == 1 else 's'}"
    return ", ".join(f"{value:,} {name}" for name, value in amounts.items())


def unit(resource: str) -> str:
    """`GPUs` for whole GPUs, else the resource's name."""
    return "GPUs" if resource == "nvidia.com/gpu" else resource


def amount(resource: str, value: Decimal) -> str:
    """`8 GPUs`, `73 cpu`, `512 Gi of memory`."""
    if resource == "memory":
        return f"{plain((value / 2**30).quantize(Decimal('0.1')))} Gi of memory"
    return f"{plain(value)} {unit(resource)}"


def bare_amount(resource: str, value: Decimal) -> str:
    """`8`, `512 Gi`: the figure after a sentence that has named the resource."""
    return amount(resource, value).removesuffix(" of memory") if resource == "memory" else plain(value)


def asked(work: Work, resource: str) -> str:
    """`9 x 8 = 72 GPUs`: what a job asks for and how it comes about."""
    total = work.total.get(resource, Decimal(0))
    if resource == "memory":
        return amount(resource, total)
    return f"{work.arithmetic(resource)} {unit(resource)}"
