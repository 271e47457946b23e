"""Fixtures every folder of tests may use."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from numpy.typing import NDArray

# How long an example takes is the machine's business.
settings.register_profile("orcaserve", deadline=None)
settings.load_profile("orcaserve")


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
