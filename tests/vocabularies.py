"""Vocabularies of a GGUF file's metadata in transformers' own classes: the oracle of tokenizers. Imported by name."""

from __future__ import annotations

from typing import Any


def hf_byte_level(metadata: dict[str, Any]) -> Any:
    import transformers

    tokens = metadata["tokenizer.ggml.tokens"]
    return transformers.GPT2Tokenizer(
        vocab={t: i for i, t in enumerate(tokens)},
        merges=[tuple(m.split(" ")) for m in metadata["tokenizer.ggml.merges"]],
        additional_special_tokens=["<|user|>", "<|end|>"],
    )


def hf_sentencepiece(metadata: dict[str, Any], **options: Any) -> Any:
    import transformers
    from transformers.tokenization_utils_base import generate_merges

    vocabulary = {t: i for i, t in enumerate(metadata["tokenizer.ggml.tokens"])}
    scores = dict(zip(vocabulary, metadata["tokenizer.ggml.scores"], strict=True))
    hf = transformers.LlamaTokenizer(vocab=vocabulary, merges=generate_merges(vocabulary, scores), **options)
    hf.add_tokens([transformers.AddedToken("<|user|>", normalized=False)])
    return hf
