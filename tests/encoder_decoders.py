"""Tiny random encoder-decoder models with odd options, made by transformers: imported by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

VOCABULARY = 97

_T5 = {
    "vocab_size": VOCABULARY,
    "d_model": 48,
    "d_kv": 10,  # times 4 heads are less than d_model
    "d_ff": 80,
    "num_layers": 2,
    "num_decoder_layers": 3,
    "num_heads": 4,
    "relative_attention_num_buckets": 12,
    "relative_attention_max_distance": 24,
    "eos_token_id": 1,
    "pad_token_id": 0,
    "decoder_start_token_id": 0,
}
_BART = {
    "vocab_size": VOCABULARY,
    "d_model": 48,
    "encoder_layers": 3,
    "decoder_layers": 2,
    "encoder_attention_heads": 3,
    "decoder_attention_heads": 6,
    "encoder_ffn_dim": 72,
    "decoder_ffn_dim": 88,
    "max_position_embeddings": 160,
    "eos_token_id": 2,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "decoder_start_token_id": 2,
    "forced_bos_token_id": None,
    "forced_eos_token_id": None,
}
_MARIAN = _BART | {"activation_function": "swish", "scale_embedding": True, "decoder_start_token_id": 1}

# By name: the class of the config, and what is in it.
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "t5": ("T5", _T5),
    "t5 v1.1": ("T5", _T5 | {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),
    "t5 gated silu": ("T5", _T5 | {"feed_forward_proj": "gated-silu", "d_kv": 16}),
    "mt5": ("MT5", _T5 | {"feed_forward_proj": "gated-gelu"}),
    "bart": ("Bart", _BART),
    "bart scaled, forced": ("Bart", _BART | {"scale_embedding": True, "forced_bos_token_id": 7}),
    "bart relu, two tables": ("Bart", _BART | {"activation_function": "relu", "tie_word_embeddings": False}),
    "marian": ("Marian", _MARIAN),
    "marian odd width": ("Marian", _MARIAN | {"d_model": 45, "decoder_attention_heads": 5}),
}


def make_model(kind: str) -> Any:
    """The transformers model, with weights larger than initialisation gives: so that every one of them matters."""
    import transformers

    name, options = KINDS[kind]
    config = getattr(transformers, f"{name}Config")(**options)
    torch.manual_seed(len(kind))
    classes = {"T5": "T5ForConditionalGeneration", "MT5": "MT5ForConditionalGeneration",
               "Bart": "BartForConditionalGeneration", "Marian": "MarianMTModel"}  # fmt: skip
    model = getattr(transformers, classes[name])(config).eval()
    with torch.no_grad():
        for key, weight in model.named_parameters():
            if "embed_positions" in key and name == "Marian":
                continue  # worked out, not learned
            size = 2.0 if "relative" in key else 0.1 if key.endswith("ttention.q.weight") else 0.3
            noise = torch.randn(weight.shape) * size
            weight.copy_(1 + noise if weight.dim() == 1 and "bias" not in key else noise)
        if name == "Bart" and options.get("tie_word_embeddings") is False:
            for side in (model.model.encoder, model.model.decoder):
                side.embed_tokens.weight.copy_(model.model.shared.weight)
        if name == "T5" and options.get("tie_word_embeddings") is False:
            model.lm_head.weight = torch.nn.Parameter(torch.randn(model.lm_head.weight.shape) * 0.3)
        if hasattr(model, "final_logits_bias"):
            model.final_logits_bias.copy_(torch.randn(model.final_logits_bias.shape))
    return model


def save(kind: str, folder: Path) -> Any:
    """Save it, and return it."""
    model = make_model(kind)
    model.save_pretrained(folder)
    return model


def add_tokenizer(folder: Path) -> None:
    """One of single bytes, whose texts end with the model's end, as T5's do."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

    config = json.loads((folder / "config.json").read_text())
    end = config["eos_token_id"]
    names = {f"<extra{i}>": i for i in range(3)}
    names = {("</s>" if i == end else name): i for name, i in names.items()}
    letters = {chr(ord(" ") + i) if i else "\u0120": 3 + i for i in range(VOCABULARY - 3)}
    backend = Tokenizer(models.BPE(vocab=names | letters, merges=[], unk_token="<extra0>" if end else None))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(list(names))
    backend.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", end)])
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>"}))
