"""A tokenizer of single bytes, and a chat template, for the tiny models: imported by name."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from server_process import BYTES
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers


def add_tokenizer(model: Path, folder: Path, vocabulary_size: int) -> Path:
    shutil.copytree(model, folder)
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in printable]
    letter = {b: chr(b) for b in printable} | {b: chr(0x100 + i) for i, b in enumerate(others)}
    vocabulary = {"<unk>": 0, "<s>": 1, "</s>": 2} | {letter[b]: BYTES + b for b in range(vocabulary_size - BYTES)}
    backend = Backend(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    backend.save(str(folder / "tokenizer.json"))
    template = "<s>{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    config = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder
