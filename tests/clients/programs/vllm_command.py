"""vLLM's own command, for builds whose package is not called vllm: it asks for the version of a package of that name
before it does anything, and ends if there is none."""

from __future__ import annotations

import sys
from importlib import metadata

_version = metadata.version


def _version_of(package: str) -> str:
    return _version(metadata.packages_distributions()["vllm"][0] if package == "vllm" else package)


metadata.version = _version_of

from vllm.entrypoints.cli.main import main  # noqa: E402

sys.argv[0] = "vllm"
sys.exit(main())
