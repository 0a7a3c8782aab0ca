"""Jobs on the lab as people make them: rendered and submitted by the verbs, with the gang check in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from typer.testing import CliRunner

from myriad.cli import build_app
from myriad.images.registry import Registry

Json = dict[str, Any]

CLONE = Path(__file__).resolve().parents[2]
REPOSITORY = "myriad/gang-check"


def submit(objects: list[Json]) -> str:
    """Through `myriad job submit`, as people do; what it said."""
    return myriad("job", "submit", "-", text="---\n".join(yaml.safe_dump(o) for o in objects))


def myriad(*arguments: str, text: str = "") -> str:
    """One command in this process: on a busy machine a start of Python takes longer than the job runs."""
    kubeconfig = str(CLONE / ".lab" / "kubeconfig")
    done = CliRunner().invoke(build_app(arguments[0]), [*arguments, "--kubeconfig", kubeconfig], input=text)
    assert done.exit_code == 0, f"{done.output}\n{done.exception}"
    return done.stdout


def image_of(lab: Any) -> str:
    """The gang check as the site's registry has it, by digest."""
    with Registry(f"http://{lab.hosts['cp1']['address']}:5000") as registry:
        digest = registry.digest_of(REPOSITORY, "0.1.0")
    assert digest is not None
    return f"registry.myriad.internal/{REPOSITORY}@{digest}"
