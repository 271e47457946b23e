"""Small vocabularies of the two common kinds, as a GGUF file's metadata has them. Imported by name."""

from __future__ import annotations

import json
from typing import Any

from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers, trainers

CORPUS = [
    "The quick brown fox jumps over the lazy dog. Once upon a time there was a fox.",
    "def add(a, b):\n    return a + b  # 1 + 1 = 2\n\n\n",
    "Grüße aus Köln, ça va? 你好，世界 🦙 don't we'll",
    "Once upon a time, once upon a time; the fox the dog the fox 123 456",
] * 4


def byte_level_parts() -> tuple[list[str], list[str]]:
    """Tokens and merges of a small byte-level BPE, trained here; three control tokens come first."""
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=["<|endoftext|>", "<|user|>", "<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS, trainer)
    model = json.loads(backend.to_str())["model"]
    tokens = [token for token, _ in sorted(model["vocab"].items(), key=lambda item: item[1])]
    return tokens, [" ".join(merge) for merge in model["merges"]]


def sentencepiece_parts() -> tuple[list[str], list[float], list[int]]:
    """Tokens, scores and types of a small SentencePiece vocabulary with byte tokens."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), "<|user|>"]
    types = [2, 3, 3, *[6] * 256, 4]
    words = ["▁the", "▁fox", "▁Once", "▁upon", "▁a", "▁time", "▁Hello", "Hello", "hi", "▁hi", "▁dog", "▁▁", "ça"]
    pieces = dict.fromkeys(w[:n] for w in words for n in range(2, len(w) + 1))
    letters = dict.fromkeys("▁" + "".join(CORPUS[0] + CORPUS[3]).replace(" ", "") + "Hlço")
    tokens += [*pieces, *(c for c in letters if c not in pieces)]
    n = len(tokens)
    types += [1] * (n - len(types))
    scores = [0.0] * 260 + [-float(i) for i in range(n - 260)]
    return tokens, scores, types


def byte_level_metadata() -> dict[str, Any]:
    tokens, merges = byte_level_parts()
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.token_type": [3, 3, 3] + [1] * (len(tokens) - 3),
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 0,
    }


def sentencepiece_metadata() -> dict[str, Any]:
    tokens, scores, types = sentencepiece_parts()
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }


def hf_byte_level(metadata: dict[str, Any]) -> Any:
    """The same vocabulary in transformers' own class."""
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
