"""The settings of the application of Ray Serve. That it serves is seen in tests/multiprocess/test_ray.py."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec

import pytest

pytestmark = pytest.mark.skipif(find_spec("ray") is None, reason="needs Ray: pip install 'orcaserve[ray]'")

SCRIPT = """
import json, sys
from orcaserve.core import ConfigError
from orcaserve.ray.app import app, build_app

def tell(args):
    try:
        deployment = build_app(args)._bound_deployment
    except ConfigError as error:
        return str(error)
    scaling = deployment._deployment_config.autoscaling_config
    words, cpus = deployment.init_args
    return [words, cpus, scaling.min_replicas, scaling.max_replicas, scaling.policy.policy_kwargs,
            deployment.ray_actor_options["num_cpus"]]

print(json.dumps([tell(args) for args in json.loads(sys.argv[1])]))
"""


def test_arguments_are_settings_of_the_deployment_or_flags_of_serve() -> None:
    cases = [
        {},
        {"model": "m.gguf", "pipeline_parallel_size": "2", "n-slots": 512, "num_cpus": "8", "max_replicas": "3"},
        {"tokens_per_replica": 100},
        {"port": 8000},
        {"max_replicas": "many"},
        {"no_such": 1},
        {"dtype": "float3"},
        {"log-format": "json"},
    ]
    # In a process of its own: what Ray warns of when it is imported is not our business.
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(cases)], capture_output=True, text=True, timeout=120
    )
    assert ended.returncode == 0, ended.stderr
    bare, full, tokens, port, many, unknown, dtype, form = json.loads(ended.stdout)
    assert bare == [[], 1, 1, 4, {"tokens_per_replica": 0}, 1]
    words = ["--model=m.gguf", "--pipeline-parallel-size=2", "--n-slots=512"]
    assert full == [words, 8, 1, 3, {"tokens_per_replica": 0}, 8]
    assert tokens[4] == {"tokens_per_replica": 100}
    assert port == "port: is Ray Serve's business, or needs a machine of its own: see `serve run --help`"
    assert form == port.replace("port", "log-format"), "the log is Ray's"
    assert many == "max_replicas: 'many' is not a number"
    assert unknown == "build_app: unrecognized arguments: --no-such=1"
    assert dtype.startswith("build_app: argument --dtype: invalid choice: 'float3'")
