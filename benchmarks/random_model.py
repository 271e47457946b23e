"""A checkpoint folder of Llama's or Mixtral's kind with random weights in bfloat16, for measuring speed and memory."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Sizes:
    """experts: MLPs of each layer, of which `chosen` are each token's; 0: one for all."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    intermediate: int
    vocab: int
    experts: int = 0
    chosen: int = 0

    @property
    def parameters(self) -> int:
        """Of all matrices."""
        head_dim = self.hidden // self.heads
        attention = self.hidden * head_dim * (2 * self.heads + 2 * self.kv_heads)
        mlp = 3 * self.hidden * self.intermediate * max(self.experts, 1) + self.experts * self.hidden
        return self.layers * (attention + mlp) + 2 * self.vocab * self.hidden

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Every tensor of the checkpoint, by transformers' names."""
        kv = self.hidden // self.heads * self.kv_heads
        layer = {
            "input_layernorm": (self.hidden,),
            "post_attention_layernorm": (self.hidden,),
            "self_attn.q_proj": (self.hidden, self.hidden),
            "self_attn.k_proj": (kv, self.hidden),
            "self_attn.v_proj": (kv, self.hidden),
            "self_attn.o_proj": (self.hidden, self.hidden),
            **self._mlps(),
        }
        ends = {"model.embed_tokens": (self.vocab, self.hidden), "model.norm": (self.hidden,)}
        ends["lm_head"] = (self.vocab, self.hidden)
        layers = {f"model.layers.{i}.{name}": shape for i in range(self.layers) for name, shape in layer.items()}
        return {f"{name}.weight": shape for name, shape in (ends | layers).items()}

    def _mlps(self) -> dict[str, tuple[int, ...]]:
        wide, narrow = (self.intermediate, self.hidden), (self.hidden, self.intermediate)
        if not self.experts:
            return {"mlp.gate_proj": wide, "mlp.up_proj": wide, "mlp.down_proj": narrow}
        shapes = {"block_sparse_moe.gate": (self.experts, self.hidden)}
        for e in range(self.experts):
            start = f"block_sparse_moe.experts.{e}."
            shapes |= {f"{start}w1": wide, f"{start}w3": wide, f"{start}w2": narrow}
        return shapes


# 1.1 billion parameters: the sizes of TinyLlama.
BILLION = Sizes(hidden=2048, layers=22, heads=32, kv_heads=4, intermediate=5632, vocab=32_000)
# 0.8 billion, of which a token uses a quarter: Mixtral's shape, smaller.
MIXTURE = Sizes(hidden=1024, layers=8, heads=16, kv_heads=4, intermediate=3584, vocab=32_000, experts=8, chosen=2)


def write_model(folder: Path, sizes: Sizes) -> None:
    """config.json and model.safetensors; 2 bytes a parameter. No tokenizer: it is run on token ids."""
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "torch_dtype": "bfloat16",
        "hidden_size": sizes.hidden, "num_hidden_layers": sizes.layers, "num_attention_heads": sizes.heads,
        "num_key_value_heads": sizes.kv_heads, "intermediate_size": sizes.intermediate, "vocab_size": sizes.vocab,
        "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "rope_theta": 10_000.0, "tie_word_embeddings": False,
        "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip
    if sizes.experts:
        config |= {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "sliding_window": None,
                   "num_local_experts": sizes.experts, "num_experts_per_tok": sizes.chosen}  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    header, at = {}, 0
    for name, shape in sizes.shapes().items():
        n_bytes = 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + n_bytes]}
        at += n_bytes
    text = json.dumps(header).encode()
    rng = np.random.default_rng(0)
    drawn: dict[tuple[int, ...], NDArray[np.uint16]] = {}  # layers repeat one another: only sizes matter here
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for shape in sizes.shapes().values():
            if shape not in drawn:
                drawn[shape] = _bfloat16(
                    np.ones(shape, np.float32)
                    if len(shape) == 1
                    else rng.standard_normal(shape, np.float32) / np.float32(shape[1] ** 0.5)
                )
            file.write(drawn[shape].tobytes())


def _bfloat16(numbers: NDArray[np.float32]) -> NDArray[np.uint16]:
    """The upper halves of the numbers' bits."""
    return (numbers.view(np.uint32) >> 16).astype(np.uint16)
