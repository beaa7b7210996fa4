"""Rules of SGLang 0.5.23, one file per topic, each function naming the server's own. ``resolve`` runs them in order."""

from collections.abc import Mapping

from autotune_planner.deployment.model import Deployment
from autotune_planner.engines.resolved import Resolved
from autotune_planner.engines.sglang_0_5_23 import resolve as pipeline
from autotune_planner.engines.sglang_0_5_23.rejection import located


def resolve(deployment: Deployment, environ: Mapping[str, str]) -> Resolved:
    """What this release makes of a deployment. ``DeploymentError`` with the line of the file where it refuses."""
    with located(deployment):
        return pipeline.resolve(deployment, environ)
