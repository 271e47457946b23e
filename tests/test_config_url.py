"""URLs in settings: an HTTP server's, or an error that names the flag."""

from __future__ import annotations

import pytest

from orcaserve.config import ServingConfig
from orcaserve.core import ConfigError


@pytest.mark.parametrize("url", ["http://c:4318", "https://user:word@c.example/v1/traces", "http://[::1]:4318/"])
def test_taken(url: str) -> None:
    assert ServingConfig(otlp_traces_endpoint=url).otlp_traces_endpoint == url


@pytest.mark.parametrize(
    "url",
    ["", "c:4318", "grpc://c:4317", "http://", "http://:4318", "http://c:99999", "http://c:0", "http://[::1",
     "http://c/\n12:00:00 ERROR", "http://c d", "file:///etc/passwd"],
)  # fmt: skip
def test_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="must be the URL of an HTTP server") as raised:
        ServingConfig(otlp_traces_endpoint=url)
    assert raised.value.name == "--otlp-traces-endpoint"
