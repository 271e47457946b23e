"""The default model against transformers with the same dequantised weights: token for token, and logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from orcaserve.text.tokenizer import Tokenizer

N_NEW = 16

STORY = (
    "It was a bright cold day in April when the old printer in the corner of the office began to hum on its own. "
    "Nobody had touched it for weeks, and yet page after page slid into the tray, each with a single line of text. "
)
CODE = "def merge(left: list[int], right: list[int]) -> list[int]:\n    out = []\n    while left and right:\n        "
TEXTS = [
    "A",
    "The capital of France is",
    "Once upon a time, in a village by the sea,",
    "1, 1, 2, 3, 5, 8,",
    "To be, or not to be: that is the question:",
    "Question: What is the boiling point of water at sea level?\nAnswer:",
    "<|im_start|>user\nWhat is the capital of Italy?<|im_end|>\n<|im_start|>assistant\n",
    "今天天气很好,我们去公园",
    "日本の首都は",
    "대한민국의 수도는",
    "Привет! Как дела?",
    "Größe, façade, naïve, Ærø —",
    "🎉🚀 Launch day! 👩‍👩‍👧‍👦",
    "emoji: 😀😃😄😁😆😅😂🤣 and",
    CODE,
    "#include <stdio.h>\n\nint main(void) {\n\tprintf(",
    "SELECT name, COUNT(*) FROM users WHERE age > 30 GROUP BY",
    '{"name": "Ada", "born": 1815, "languages": ["English", ',
    "   \n\n\t  leading and trailing   ",
    STORY,
    STORY * 5,
    (CODE + "pass\n\n\n") * 12,
    "一二三四五六七八九十" * 20,
    STORY * 25,
]


def oracle(path: Path) -> Any:
    """LlamaForCausalLM with the file's weights as the `gguf` library reads and dequantises them."""
    from gguf import GGUFReader, dequantize
    from transformers import LlamaConfig, LlamaForCausalLM

    reader = GGUFReader(path)

    def value(key: str) -> Any:
        return reader.fields[f"llama.{key}"].contents()

    heads = {"attn_q": value("attention.head_count"), "attn_k": value("attention.head_count_kv")}
    config = LlamaConfig(
        vocab_size=value("vocab_size"),
        hidden_size=value("embedding_length"),
        intermediate_size=value("feed_forward_length"),
        num_hidden_layers=value("block_count"),
        num_attention_heads=heads["attn_q"],
        num_key_value_heads=heads["attn_k"],
        max_position_embeddings=value("context_length"),
        rms_norm_eps=value("attention.layer_norm_rms_epsilon"),
        rope_parameters={"rope_type": "default", "rope_theta": value("rope.freq_base")},
        tie_word_embeddings=True,
    )
    names = {
        "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
        "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
    }  # fmt: skip
    state: dict[str, Tensor] = {}
    for tensor in reader.tensors:
        weight = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy())
        if tensor.name == "token_embd.weight":
            state["model.embed_tokens.weight"] = state["lm_head.weight"] = weight
        elif tensor.name == "output_norm.weight":
            state["model.norm.weight"] = weight
        else:
            _, layer, part, _ = tensor.name.split(".")
            if part in heads:
                weight = weight.view(heads[part], -1, 2, weight.shape[1]).transpose(1, 2).reshape(weight.shape)
            state[f"model.layers.{layer}.{names[part]}.weight"] = weight
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    model.load_state_dict(state, assign=True)
    model.model.rotary_emb = type(model.model.rotary_emb)(config)
    return model.eval()


@pytest.mark.timeout(900)
def test_greedy_text_and_logits_are_those_of_transformers(default_model: Path, run: Any) -> None:
    """All prompts run together in mixed batches here, and one by one there, where the whole text is checked at once."""
    tokenizer = Tokenizer.from_path(default_model)
    prompts = [tokenizer.encode(text)[:1000] for text in TEXTS]
    assert len(prompts) >= 20
    assert min(map(len, prompts)) == 1
    assert max(map(len, prompts)) == 1000

    runner = run(default_model, n_slots=8192)
    outputs: list[list[int]] = [[] for _ in prompts]
    logits: list[list[Tensor]] = [[] for _ in prompts]
    for iteration in range(N_NEW + 4):  # prompts come in over the first five iterations
        batch = [i for i in range(len(prompts)) if i % 5 <= iteration < i % 5 + N_NEW]
        step = runner.step([(i, outputs[i][-1:] or prompts[i]) for i in batch])
        for i, row in zip(batch, step, strict=True):
            outputs[i].append(int(row.argmax()))
            logits[i].append(row)

    reference = oracle(default_model)
    for prompt, output, rows in zip(prompts, outputs, logits, strict=True):
        assert len(output) == N_NEW
        with torch.inference_mode():
            expected = reference(torch.tensor([prompt + output[:-1]]), logits_to_keep=N_NEW).logits[0]
        # Step by step the best token given the same text before it: by induction the same as generating greedily.
        assert expected.argmax(1).tolist() == output
        error = (torch.stack(rows) - expected).abs().amax(1) / expected.abs().amax(1)
        assert error.max() < 1e-3
