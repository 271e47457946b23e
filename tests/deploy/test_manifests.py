"""The files in deploy/ are YAML of the kinds they say, and every command in them is one that the command line takes."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from orcaserve.cli.main import Parser
from orcaserve.cli.options import engine_config
from orcaserve.config import split_address

DEPLOY = Path(__file__).parents[2] / "deploy"
FILES = sorted(DEPLOY.rglob("*.yaml"))
INJECTED = {"LWS_GROUP_SIZE": "2", "LWS_WORKER_INDEX": "1", "LWS_LEADER_ADDRESS": "leader.orcaserve"}


def documents(path: Path) -> list[dict[str, Any]]:
    return [document for document in yaml.safe_load_all(path.read_text()) if document]


def commands(node: Any) -> Iterator[list[str]]:
    """All commands below it, with the variables that Kubernetes fills in."""
    if isinstance(node, dict):
        for key, value in node.items():
            if key == "command":
                yield [re.sub(r"\$\((\w+)\)", lambda name: INJECTED[name[1]], word) for word in value]
            else:
                yield from commands(value)
    elif isinstance(node, list):
        for value in node:
            yield from commands(value)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_commands_are_taken(path: Path, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = tmp_path / "secret"
    secret.write_text("0123456789abcdef")
    secret.chmod(0o600)
    monkeypatch.setenv("ORCASERVE_SECRET", secret.read_text())
    found = list(commands(documents(path)))
    assert sorted(command[1] for command in found) == ["serve", "worker"]
    for program, verb, *words in found:
        assert program == "orcaserve"
        module = importlib.import_module(f"orcaserve.cli.{verb}")
        parser = Parser(prog=verb)
        module.add_arguments(parser)
        here = [word.replace("/models/model.gguf", str(tiny_model)) for word in words]
        args = parser.parse_args([word.replace("/run/secrets/orcaserve", str(secret)) for word in here])
        if verb == "serve":
            config = engine_config(args)
            assert config.nodes.n_nodes == config.parallel.n_workers == 2
        else:
            assert split_address("--join", args.join)[1] == 7000


@pytest.mark.parametrize("path", sorted(DEPLOY.glob("kubernetes/*.yaml")), ids=lambda path: path.name)
def test_kubernetes_objects(path: Path) -> None:
    kinds = set()
    for document in documents(path):
        assert document["apiVersion"] and re.fullmatch(r"[a-z0-9-]+", document["metadata"]["name"])
        kinds.add(document["kind"])
        if document["kind"] == "StatefulSet":
            spec = document["spec"]
            assert spec["selector"]["matchLabels"] == spec["template"]["metadata"]["labels"]
            assert spec["serviceName"] == "orcaserve-nodes"
    if path.name == "statefulset.yaml":
        assert kinds == {"Secret", "Service", "StatefulSet", "NetworkPolicy"}
    else:
        assert kinds == {"LeaderWorkerSet"}


def test_the_secret_in_the_file_is_none() -> None:
    """Whoever forgets to replace it is told so, and serves nobody."""
    from orcaserve.config import NodesConfig
    from orcaserve.core import ConfigError

    (secret,) = [d for d in documents(DEPLOY / "kubernetes/statefulset.yaml") if d["kind"] == "Secret"]
    with pytest.raises(ConfigError, match="at least 16 characters"):
        NodesConfig(2, "0.0.0.0:7000", secret=secret["stringData"]["secret"])


def test_compose_names_what_it_uses() -> None:
    (compose,) = documents(DEPLOY / "compose.yaml")
    for service in compose["services"].values():
        assert set(service["secrets"]) <= set(compose["secrets"]) and set(service["networks"]) <= set(
            compose["networks"]
        )
