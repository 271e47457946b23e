"""docs/clients.md: which clients were run, in which versions, and how."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from catalogue import Client
from outcome import Outcome

CLIENTS_MD = Path(__file__).parents[2] / "docs" / "clients.md"
BEGIN = """# Clients

Real clients, load tools and evaluation harnesses, run against `orcaserve serve` as they are, with no configuration
beyond address and model. `scripts/clients` installs each in an environment of its own, runs it and checks what came
back; `scripts/clients --write-docs` has written this page. What is said of a version holds for that version.

Each client gets a server of its own, which is looked at when it has left: healthy, a known text unchanged, no slot
held, an orderly end. The model is the default one unless a section says otherwise. Programs lie in
`tests/clients/programs`.

"""


def document(kept: Sequence[tuple[Client, Outcome | None]]) -> str:
    """The page, from every client's last run."""
    rows = ["| client | version | checks | run on |", "|---|---|---|---|"]
    sections = []
    for client, outcome in kept:
        if outcome is None:
            rows.append(f"| {client.title} | - | not run | - |")
            continue
        passed = sum(step.error is None for step in outcome.steps)
        rows.append(f"| {client.title} | {outcome.version} | {passed} of {len(outcome.steps)} pass | {outcome.date} |")
        sections.append(_section(client, outcome))
    return BEGIN + "\n".join(rows) + "\n" + "".join(sections)


def _section(client: Client, outcome: Outcome) -> str:
    steps = "".join(
        f"- {step.what}{'' if step.error is None else f': **failed** ({step.error})'}\n" for step in outcome.steps
    )
    commands = "".join(f"{command}\n" for command in outcome.commands)
    called = f"```sh\n{commands}```\n\n" if commands else ""
    installed = " ".join(client.requirements)
    told = f"Installed from `{installed}`. Needed beside address and model: {client.needs}."
    if client.checkpoint:
        told += f" Served: a small model with random weights, with `{' '.join(client.flags)}`."
    return f"\n## {client.title}\n\n{told}\n\n{called}{steps}"
