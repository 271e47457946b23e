"""Whether two machines have the same checkpoint, told from little of it: headers and small tensors."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from orcaserve.checkpoint.checkpoint import open_checkpoint
from orcaserve.checkpoint.converted import WEIGHTS, is_converted
from orcaserve.checkpoint.json_object import parse_object
from orcaserve.checkpoint.safetensors import SafetensorsFile
from orcaserve.core.errors import CheckpointError

MOST_BYTES = 2**20  # of small tensors that are read

_NUMBERS = {
    "num_hidden_layers": "layers",
    "hidden_size": "hidden size",
    "num_attention_heads": "heads",
    "num_key_value_heads": "key/value heads",
    "vocab_size": "vocabulary",
}
_SPEC_NUMBERS = {  # the same in a converted model's description
    "n_layers": "layers",
    "hidden_size": "hidden size",
    "n_heads": "heads",
    "n_kv_heads": "key/value heads",
    "vocab_size": "vocabulary",
}


def fingerprint(path: Path) -> tuple[str, str]:
    """The model in words and numbers, and a hash. Raises ModelError.

    Hashed are its config, the names, sizes and kinds of its tensors, and its vectors (norms, biases), which change when
    a model is trained further. Of a converted model its file's own description is hashed, which has checksums of all
    weights.
    """
    if is_converted(path):
        return _of_converted(path / WEIGHTS)
    checkpoint = open_checkpoint(path)
    try:
        config, tensors = checkpoint.config, checkpoint.tensors
        numbers = [f"{words} {config[key]}" for key, words in _NUMBERS.items() if key in config]
        names = sorted(tensors)
        header = [dict(config), [[name, list(tensors[name].shape), tensors[name].kind] for name in names]]
        digest = hashlib.sha256(json.dumps(header, sort_keys=True, default=str).encode())
        room = MOST_BYTES
        for name in names:
            if len(tensors[name].shape) == 1 and room > 0:
                stored = checkpoint.stored(name).tobytes()
                room -= len(stored)
                digest.update(stored)
    finally:
        checkpoint.close()
    return ", ".join([str(config.get("model_type")), *numbers]), digest.hexdigest()


def _of_converted(path: Path) -> tuple[str, str]:
    file = SafetensorsFile(path)
    text = file.metadata.get("orcaserve")
    file.close()
    if not isinstance(text, str):
        raise CheckpointError(f"{path.name}: the description of the weights is damaged")
    description = parse_object(text.encode(), path.name)
    spec, precision = (description.get(key) for key in ("spec", "precision"))
    if not isinstance(spec, dict) or not isinstance(precision, dict):
        raise CheckpointError(f"{path.name}: the description of the weights is damaged")
    numbers = [f"{words} {spec[key]}" for key, words in _SPEC_NUMBERS.items() if key in spec]
    words = ", ".join([f"a model converted to {precision.get('held')}", *numbers])
    return words, hashlib.sha256(text.encode()).hexdigest()
