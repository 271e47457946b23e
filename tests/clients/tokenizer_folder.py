"""A model's tokenizer as a folder that transformers loads: for tools that count tokens themselves."""

from __future__ import annotations

import json
from pathlib import Path

from orcaserve.text.tokenizer import Tokenizer


def write_tokenizer(model: Path, folder: Path) -> None:
    """model: any that is served, GGUF files included; they hold a tokenizer, but not in this form."""
    tokenizer = Tokenizer.from_path(model)
    folder.mkdir(parents=True)
    tokenizer._backend.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "chat_template": tokenizer.chat_template,
        **tokenizer.special_tokens,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": tokenizer.vocab_size}))
