"""Fixtures every folder of tests may use."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, trainers

from orcaserve.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from numpy.typing import NDArray

# How long an example takes is the machine's business.
settings.register_profile("orcaserve", deadline=None)
settings.load_profile("orcaserve")


@pytest.fixture(scope="session", autouse=True)
def _state_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What servers keep for good, of users who gave no folder, is not the user's who runs the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(autouse=True)
def _loggers_as_they_were() -> Iterator[None]:
    """What one test has logged, and where to, is not written in the next ones."""
    loggers = [logging.getLogger(), logging.getLogger("orcaserve")]
    before = [(list(logger.handlers), logger.level) for logger in loggers]
    yield
    for logger, (handlers, level) in zip(loggers, before, strict=True):
        logger.handlers[:] = handlers
        logger.setLevel(level)


@pytest.fixture(scope="session")
def within() -> Callable[[float, Callable[[], bool]], bool]:
    """Does the condition come true within so many seconds?"""

    def wait(seconds: float, condition: Callable[[], bool]) -> bool:
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.005)
        return True

    return wait


@pytest.fixture(scope="session")
def default_model() -> Path:
    """The default model's GGUF file, fetched into the cache once and checked by its hash."""
    from orcaserve.checkpoint.locate import locate_model

    return locate_model(None)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint folder of Llama's kind with random weights: some 100 KB, loaded in no time."""
    return write_llama(tmp_path_factory.mktemp("tiny"), 256, hidden=32, layers=2, heads=4, kv_heads=2, mlp=64)


@pytest.fixture(scope="session")
def odd_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same for cutting: nothing of it can be divided evenly by 2 and 3 and 4."""
    return write_llama(tmp_path_factory.mktemp("odd"), 251, hidden=64, layers=5, heads=8, kv_heads=4, mlp=200)


@pytest.fixture(scope="session")
def outlier_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One whose every matrix has inputs that are larger than the others by far. Shards of 2 and 3 cut its MLP between
    and within the groups in which int8 weights share scales."""
    import numpy as np
    from safetensors.numpy import load_file, save_file

    folder = write_llama(tmp_path_factory.mktemp("outliers"), 251, hidden=192, layers=3, heads=6, kv_heads=3, mlp=384)
    tensors = load_file(folder / "model.safetensors")
    for i, (name, tensor) in enumerate(sorted(tensors.items())):
        chosen = np.random.default_rng(i).permutation(len(tensor))[:9]
        if name.endswith("norm.weight") or ".v_proj" in name or ".up_proj" in name:
            tensor[chosen] *= 12
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def write_llama(folder: Path, vocabulary: int, hidden: int, layers: int, heads: int, kv_heads: int, mlp: int) -> Path:
    import numpy as np
    from safetensors.numpy import save_file

    random = np.random.default_rng(0)

    def matrix(*shape: int) -> NDArray[np.float32]:
        return (random.standard_normal(shape) * 0.2).astype(np.float32)

    head_dim = hidden // heads
    tensors = {
        "model.embed_tokens.weight": matrix(vocabulary, hidden),
        "model.norm.weight": np.ones(hidden, np.float32),
        "lm_head.weight": matrix(vocabulary, hidden),
    }
    for i in range(layers):
        tensors |= {
            f"model.layers.{i}.{name}.weight": value
            for name, value in {
                "input_layernorm": np.ones(hidden, np.float32),
                "post_attention_layernorm": np.ones(hidden, np.float32),
                "self_attn.q_proj": matrix(heads * head_dim, hidden),
                "self_attn.k_proj": matrix(kv_heads * head_dim, hidden),
                "self_attn.v_proj": matrix(kv_heads * head_dim, hidden),
                "self_attn.o_proj": matrix(hidden, heads * head_dim),
                "mlp.gate_proj": matrix(mlp, hidden),
                "mlp.up_proj": matrix(mlp, hidden),
                "mlp.down_proj": matrix(hidden, mlp),
            }.items()
        }
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": mlp,
        "max_position_embeddings": 4096,
        "num_attention_heads": heads,
        "num_hidden_layers": layers,
        "num_key_value_heads": kv_heads,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "vocab_size": vocabulary,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))
    return folder


CORPUS = [
    "The quick brown fox jumps over the lazy dog. Once upon a time there was a fox.",
    "def add(a, b):\n    return a + b  # 1 + 1 = 2\n\n\n",
    "Grüße aus Köln, ça va? 你好，世界 🦙 don't we'll",
    "Once upon a time, once upon a time; the fox the dog the fox 123 456",
] * 4

TEXTS = [
    "Hello",
    " Hello",
    "\n\n",
    "<|user|>hi",
    "<|im_start|>hi<|im_end|>\n",
    "1234567890 12 3",
    "a  1   22",
    "Grüße, ça va, naïve, Å",
    "👩‍🚀 🦙 汉 Ď",
    "a\nb 깰 🦙",
    "Say A.\u0000 Say B.",
    "\u0000",
    "",
    "▁Once ▁ upon",
    "def f(x):\n\treturn x  \r\n",
    "don't WE'LL I'd",
    "The quick brown fox 1234.5 " * 300,
]


@pytest.fixture(params=TEXTS, ids=lambda text: repr(text[:12]))
def sample_text(request: pytest.FixtureRequest) -> str:
    return str(request.param)


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


@pytest.fixture(scope="session")
def byte_level_metadata() -> dict[str, object]:
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


@pytest.fixture(scope="session")
def sentencepiece_metadata() -> dict[str, object]:
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


@pytest.fixture(scope="session")
def byte_level(byte_level_metadata: dict[str, object]) -> Tokenizer:
    from orcaserve.text.gguf_tokenizer import tokenizer_from_metadata

    return tokenizer_from_metadata(byte_level_metadata)


@pytest.fixture(scope="session")
def byte_fallback(sentencepiece_metadata: dict[str, object]) -> Tokenizer:
    from orcaserve.text.gguf_tokenizer import tokenizer_from_metadata

    return tokenizer_from_metadata(sentencepiece_metadata)


@pytest.fixture(scope="session")
def metaspace() -> Tokenizer:
    """A vocabulary whose decoder is Metaspace alone, as T5's is."""
    backend = Backend(models.WordLevel({"<unk>": 0, "▁a": 1, "b": 2, "▁": 3, "▁▁c": 4, "</s>": 5}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    backend.add_special_tokens(["</s>"])
    return Tokenizer(backend, {"eos_token": "</s>"})


@pytest.fixture(scope="session")
def default_tokenizer(default_model: Path) -> Tokenizer:
    return Tokenizer.from_path(default_model)
