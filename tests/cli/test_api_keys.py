"""Files of API keys: what is read, and that no error shows a key."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from orcaserve.cli.api_keys import api_keys, read_keys
from orcaserve.config import ApiKey, ServingConfig
from orcaserve.core.errors import ConfigError
from orcaserve.serving.keyring import Keyring

SECRET = "sk-7f3a9"
GOOD = f"""
- {{name: search, key: {SECRET}-1, weight: 4, priority: -1}}
- name: nightly runs
  key: "12345"
"""


def write(path: Path, text: str, mode: int = 0o600) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


def test_what_is_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    keys = [ApiKey("search", f"{SECRET}-1", 4, -1), ApiKey("nightly runs", "12345")]
    assert read_keys(write(tmp_path / "keys.yaml", GOOD)) == keys
    text = f'[{{"name": "search", "key": "{SECRET}-1", "weight": 4, "priority": -1}}, {{"name": "nightly runs", "key": "12345"}}]'  # noqa: E501
    assert read_keys(write(tmp_path / "keys.json", text)) == keys
    assert not caplog.records and SECRET not in repr(keys)
    both = api_keys(["a", "b"], tmp_path / "keys.json")
    assert [key.name for key in both] == ["key-1", "key-2", "search", "nightly runs"]
    assert api_keys(None, None) == ()


def test_a_file_that_others_can_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        read_keys(write(tmp_path / "keys.yaml", GOOD, 0o644))
    assert "chmod 600" in caplog.text and SECRET not in caplog.text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "a list of entries"),
        ("a: b", "a list of entries"),
        ("[]", "a list of entries"),
        (f"- {SECRET}", "entry 1 must be an object"),
        (f"- {{name: a, key: {SECRET}, {SECRET}: 1}}", "entry 1 has 1 members beside"),
        ("- {name: a}", "entry 1: key must be a string"),
        ("- {name: a, key: 12345}", "quote what looks like a number"),
        (f"- {{key: {SECRET}}}", "entry 1: name must be a string"),
        (f"- {{name: '', key: {SECRET}}}", "a key's name must be"),
        (f"- {{name: a, key: {SECRET}}}\n- {{name: b, key: '{SECRET} x'}}", "entry 2: key 'b': key must be"),
        (f"- {{name: a, key: {SECRET}, weight: 0}}", "key 'a': weight must be a number from 0.01 to 100"),
        (f"- {{name: a, key: {SECRET}, weight: .nan}}", "weight must be"),
        (f"- {{name: a, key: {SECRET}, weight: true}}", "weight must be"),
        (f"- {{name: a, key: {SECRET}, priority: 1.5}}", "priority must be an integer"),
        (f"- {{name: a, key: [{SECRET}", "is not YAML: see line"),
        (f"- {{name: a, key: !!python/object:os.system {SECRET}}}", "is not YAML"),
    ],
)
def test_bad_files(text: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        read_keys(write(tmp_path / "keys.yaml", text))
    assert str(raised.value).startswith("--api-keys-file: ") and words in str(raised.value)
    assert SECRET not in str(raised.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read_keys(tmp_path / "none")
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\xfa")
    with pytest.raises(ConfigError, match="not UTF-8"):
        read_keys(tmp_path / "bytes.yaml")
    with pytest.raises(ConfigError, match="is not JSON: see line 1"):
        read_keys(write(tmp_path / "keys.json", f"[{SECRET}"))
    os.truncate(write(tmp_path / "large.yaml", GOOD), 5 * 2**20)
    with pytest.raises(ConfigError, match="more than"):
        read_keys(tmp_path / "large.yaml")


def test_keys_of_the_command_line() -> None:
    for bad in ("", " ", "a b", "x" * 1025, "schlüssel"):
        with pytest.raises(ConfigError) as raised:
            api_keys(["good", bad], None)
        assert str(raised.value).startswith("--api-key: ") and (len(bad) < 2 or bad not in str(raised.value))


def test_entries_that_cannot_be_told_apart() -> None:
    for keys, words in (
        ((ApiKey("a", "x"), ApiKey("a", "y")), "two keys are named 'a'"),
        ((ApiKey("a", SECRET), ApiKey("b", SECRET)), "'a' and 'b' have the same key"),
    ):
        with pytest.raises(ConfigError) as raised:
            ServingConfig(api_keys=keys)
        assert words in str(raised.value) and SECRET not in str(raised.value)


def test_the_keyring() -> None:
    keys = [ApiKey(f"k{i}", f"{SECRET}-{i}") for i in range(5)]
    ring = Keyring(keys)
    assert ring and not Keyring([])
    assert ring.find(f"Bearer {SECRET}-3") == keys[3] and ring.find(f"bearer  {SECRET}-0 ") == keys[0]
    for wrong in (None, "", "Bearer", f"Bearer {SECRET}", f"Basic {SECRET}-1", f"{SECRET}-1", "Bearer \xff"):
        assert ring.find(wrong) is None
