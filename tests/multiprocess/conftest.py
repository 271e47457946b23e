"""A tiny random model on disk, and a look at the machine's processes."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

VOCABULARY, HIDDEN, LAYERS, HEADS, KV_HEADS, MLP = 256, 32, 2, 4, 2, 64


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session", autouse=True)
async def one_loop(anyio_backend: str) -> AsyncIterator[None]:
    """All tests share one event loop: gRPC may bring the end of a call that was given up to a loop that is closed."""
    yield


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint folder of Llama's kind with random weights: some 100 KB, loaded in no time."""
    random = np.random.default_rng(0)

    def matrix(*shape: int) -> np.ndarray:
        return (random.standard_normal(shape) * 0.2).astype(np.float32)

    head_dim = HIDDEN // HEADS
    tensors = {
        "model.embed_tokens.weight": matrix(VOCABULARY, HIDDEN),
        "model.norm.weight": np.ones(HIDDEN, np.float32),
        "lm_head.weight": matrix(VOCABULARY, HIDDEN),
    }
    for i in range(LAYERS):
        tensors |= {
            f"model.layers.{i}.{name}.weight": value
            for name, value in {
                "input_layernorm": np.ones(HIDDEN, np.float32),
                "post_attention_layernorm": np.ones(HIDDEN, np.float32),
                "self_attn.q_proj": matrix(HEADS * head_dim, HIDDEN),
                "self_attn.k_proj": matrix(KV_HEADS * head_dim, HIDDEN),
                "self_attn.v_proj": matrix(KV_HEADS * head_dim, HIDDEN),
                "self_attn.o_proj": matrix(HIDDEN, HEADS * head_dim),
                "mlp.gate_proj": matrix(MLP, HIDDEN),
                "mlp.up_proj": matrix(MLP, HIDDEN),
                "mlp.down_proj": matrix(HIDDEN, MLP),
            }.items()
        }
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": HIDDEN,
        "intermediate_size": MLP,
        "max_position_embeddings": 4096,
        "num_attention_heads": HEADS,
        "num_hidden_layers": LAYERS,
        "num_key_value_heads": KV_HEADS,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "vocab_size": VOCABULARY,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    folder = tmp_path_factory.mktemp("tiny")
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture
def alive() -> Callable[[int], bool]:
    """Does this process still run? One that waits for somebody to take its exit code does not."""

    def look(pid: int) -> bool:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return False
        return state not in "ZX"

    return look


@pytest.fixture
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
