"""A Helm chart rendered to objects by the locked helm, without a cluster."""

from __future__ import annotations

import subprocess
from pathlib import Path

from myriad.errors import InputError, MyriadError

TIMEOUT_S = 120


class ChartError(MyriadError):
    """helm did not render a chart; the message holds what it said."""


def render(program: Path, chart: Path, *, name: str, namespace: str, values: str = "") -> str:
    """Every object of a chart, its CRDs too, as YAML documents.

    Args:
        program: helm.
        chart: a chart's archive or folder.
        name: name of the release.
        namespace: its namespace; it need not exist.
        values: YAML text of the release's values.

    Raises:
        InputError: helm or the chart is not there.
        ChartError: helm refused the chart or the values.
    """
    for path, what in ((program, "helm"), (chart, "the chart")):
        if not path.exists():
            raise InputError(
                f"{what} is not at {path}", hint="`myriad bundle verify` names what the bundle lacks", where=name
            )
    command = [str(program), "template", name, str(chart), "--namespace", namespace, "--include-crds", "--values", "-"]
    try:
        done = subprocess.run(command, input=values, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise ChartError(f"helm did not render it within {TIMEOUT_S} s", where=f"chart {name}") from error
    except OSError as error:
        raise ChartError(f"{program} cannot be run: {error.strerror}", where=f"chart {name}") from error
    if done.returncode != 0:
        said = "\n  ".join(done.stderr.strip().splitlines()[-10:])
        raise ChartError(
            f"helm does not render it:\n  {said}",
            where=f"chart {name}",
            hint="compare the values with the chart's own: helm show values " + str(chart),
        )
    return done.stdout
