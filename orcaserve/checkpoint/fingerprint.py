"""Whether two machines have the same checkpoint, told from little of it: headers and small tensors."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from orcaserve.checkpoint.checkpoint import open_checkpoint

MOST_BYTES = 2**20  # of small tensors that are read

_NUMBERS = {
    "num_hidden_layers": "layers",
    "hidden_size": "hidden size",
    "num_attention_heads": "heads",
    "num_key_value_heads": "key/value heads",
    "vocab_size": "vocabulary",
}


def fingerprint(path: Path) -> tuple[str, str]:
    """The model in words and numbers, and a hash. Raises ModelError.

    Hashed are its config, the names, sizes and kinds of its tensors, and its vectors (norms, biases), which change when
    a model is trained further.
    """
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
