"""Small models that recite: real files of transformers, whose likeliest text is known in advance.

GPT-2 says the token of its script that belongs to the position, for positions are an embedding there; Llama says the
token that follows the last one in a chain. Everything else in them is random and small, so that other tokens come where
temperatures are high, and a mistake anywhere moves the logits. vocabulary: as a GGUF file's metadata has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from gguf_files import save_gguf
from vocabularies import hf_byte_level, hf_sentencepiece

CONTEXT = 256
SCRIPT = "count 1 2 3 4 5 6 7 8 9 10; Ď 汉 👩‍🚀 🐋, the quick brown fox jumps over the lazy dog. Once upon a time "
CHAIN = ["▁Once", "<0xEA>", "<0xB9>", "<0xB0>", "<0x0A>", "▁upon", "▁a", "▁time", "▁the", "▁fox", "▁dog", "▁hi", "hi"]
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"


@dataclass(frozen=True)
class Recited:
    """path: what is served. model, tokenizer: the same in transformers. script: its token ids, from position 0 on (of
    GPT-2), or once through the chain (of Llama)."""

    path: Path
    model: Any
    tokenizer: Any
    script: list[int]

    @property
    def vocab_size(self) -> int:
        return int(self.model.config.vocab_size)

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text)
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        text: str = self.tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text

    def logits(self, ids: Sequence[int]) -> torch.Tensor:
        """After the last of these, float32 [V]."""
        n_threads = torch.get_num_threads()
        torch.set_num_threads(1)  # several would wait for each other longer than one computes
        try:
            with torch.inference_mode():
                last: torch.Tensor = self.model(torch.tensor([list(ids)])).logits[0, -1]
        finally:
            torch.set_num_threads(n_threads)
        return last

    def greedy(self, prompt: Sequence[int], n: int) -> list[int]:
        ids = list(prompt)
        for _ in range(n):
            ids.append(int(self.logits(ids).argmax()))
        return ids[len(prompt) :]

    def continuation(self, prompt: Sequence[int], output: Sequence[int]) -> str:
        """What transformers' decode of both says after that of the prompt, whose text is whole."""
        before, whole = self.decode(prompt), self.decode([*prompt, *output])
        assert whole.startswith(before), (before, whole)
        return whole[len(before) :]

    def greedy_text(self, prompt: Sequence[int], n: int) -> str:
        return self.continuation(prompt, self.greedy(prompt, n))


def reciting_gpt2(folder: Path, vocabulary: dict[str, Any]) -> Recited:
    from transformers import GPT2Config, GPT2LMHeadModel

    tokenizer = hf_byte_level(vocabulary)
    tokenizer.chat_template = TEMPLATE
    script = (tokenizer.encode(SCRIPT) * 8)[:CONTEXT]
    sizes = {"vocab_size": len(tokenizer), "n_embd": CONTEXT, "n_layer": 2, "n_head": 4, "n_positions": CONTEXT}
    config = GPT2Config(**sizes, bos_token_id=0, eos_token_id=0, tie_word_embeddings=False)
    torch.manual_seed(1)
    model = GPT2LMHeadModel._from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        model.transformer.wpe.weight.copy_(3 * torch.eye(CONTEXT))
        head = 0.03 * torch.randn(len(tokenizer), CONTEXT)
        for position in range(CONTEXT - 1):
            head[script[position + 1], position] += 0.6
        model.lm_head.weight.copy_(head)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return Recited(folder, model, tokenizer, script)


def reciting_llama(folder: Path, vocabulary: dict[str, Any], context: int = CONTEXT) -> Recited:
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = hf_sentencepiece(vocabulary, add_bos_token=True)
    tokenizer.chat_template = TEMPLATE
    hidden, n = 384, len(tokenizer)
    assert n <= hidden
    chain: list[int] = tokenizer.convert_tokens_to_ids(CHAIN)
    assert len(set(chain)) == len(chain) and 0 not in chain
    sizes = {"vocab_size": n, "hidden_size": hidden, "intermediate_size": 320, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": context}
    config = LlamaConfig(**sizes, **heads, bos_token_id=1, eos_token_id=2, tie_word_embeddings=False)
    torch.manual_seed(2)
    model = LlamaForCausalLM._from_config(config, attn_implementation="eager").eval()
    follower = {token: chain[(i + 1) % len(chain)] for i, token in enumerate(chain)}
    with torch.no_grad():
        embedding = 0.01 * torch.randn(n, hidden)
        embedding[:, :n] += 4 * torch.eye(n)
        model.model.embed_tokens.weight.copy_(embedding)
        for layer in model.model.layers:  # what they add stays small beside that
            layer.self_attn.o_proj.weight *= 0.3
            layer.mlp.down_proj.weight *= 0.3
        head = 0.03 * torch.randn(n, hidden)
        for token in range(n):
            head[follower.get(token, chain[0]), token] += 0.6
        model.lm_head.weight.copy_(head)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return Recited(folder, model, tokenizer, chain)


def as_gguf(llama: Recited, path: Path, vocabulary: dict[str, Any]) -> Recited:
    """The same model in a file as llama.cpp has it."""
    save_gguf(llama.model, path, "F32", tokenizer=vocabulary | {"tokenizer.chat_template": TEMPLATE})
    return Recited(path, llama.model, llama.tokenizer, llama.script)
