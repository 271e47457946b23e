"""Tiny random encoder-decoder models with odd options, made by transformers: imported by name."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from parted import CPU, Partitioned
from torch import Tensor

from orcaserve.model.encoder_decoder.loader import EncoderDecoderFiles
from orcaserve.model.encoder_decoder.part import EncoderDecoderPart
from orcaserve.model.kv_manager import KVManager
from orcaserve.model.layout import Layout
from orcaserve.model.reference.encoder_decoder import EncoderDecoder, load_encoder_decoder, load_encoder_decoder_part
from orcaserve.model.reference.kv_region import KVRegion

VOCABULARY = 97
PAGE = 4
SOURCES = [np.random.default_rng(n).integers(3, VOCABULARY, n).tolist() for n in (9, 1, 40, 8)]

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


class TwoStacks:
    """How such a model is cut: see parted.Partitioned."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with EncoderDecoderFiles(path) as files:
            self._spec = files.spec
        self.n_layers = self._spec.n_stacked

    def part(self, layers: range, shard: int, n_shards: int) -> EncoderDecoderPart:
        return EncoderDecoderPart(self._spec, layers, shard, n_shards)

    def load(self, part: EncoderDecoderPart, reduce: Callable[[Tensor], None] | None) -> EncoderDecoder:
        return load_encoder_decoder_part(self._path, part, torch.float32, CPU, reduce)


class Running:
    """A model, whole or cut, and its K/V: iterations of (request id, source or nothing, the decoder's tokens)."""

    def __init__(self, folder: Path, cut: Partitioned | None = None) -> None:
        """cut: the same model as parts."""
        with EncoderDecoderFiles(folder) as files:
            self.spec = files.spec
        self.kv = KVManager(1024, PAGE) if cut is None else cut.pages
        if cut is None:
            model, region = load_encoder_decoder(folder), KVRegion(self.spec, self.kv.n_pages, PAGE)
            self._forward: Callable[[Tensor, Layout], Tensor] = lambda flat, layout: model.forward(flat, layout, region)
        else:
            self._forward = cut.forward

    def step(self, pieces: Sequence[tuple[int, Sequence[int], Sequence[int]]]) -> Tensor:
        """-> logits [requests, vocabulary]."""
        for request, source, _ in pieces:
            if source:
                self.kv.begin_source(request, len(source))
        layout = self.kv.lay_out([(request, len(source) + len(tokens)) for request, source, tokens in pieces])
        flat = torch.tensor([t for _, source, tokens in pieces for t in (*source, *tokens)])
        return self._forward(flat, layout)

    def greedy(self, request: int, source: Sequence[int], n: int) -> list[int]:
        tokens = [int(self.step([(request, source, [self.spec.start])]).argmax())]
        while len(tokens) < n:
            tokens.append(int(self.step([(request, [], tokens[-1:])]).argmax()))
        self.kv.drop(request)
        return tokens

    def in_company(self, n: int, told: Callable[[Tensor], None] = lambda logits: None) -> list[list[int]]:
        """Greedy texts of n tokens of all SOURCES, in the same iterations: initiations, increments, and one that was
        preempted and starts anew with what it had put out. told: is given all logits."""
        start = self.spec.start
        texts: dict[int, list[int]] = {}
        for iteration in range(n + len(SOURCES)):
            entries: list[tuple[int, Sequence[int], Sequence[int]]] = []
            for request, source in enumerate(SOURCES):
                if iteration == request:
                    entries.append((request, source, [start]))
                    texts[request] = []
                elif request == 2 and iteration == 6:
                    self.kv.drop(request)
                    entries.append((request, source, [start, *texts[request]]))
                elif request in texts and len(texts[request]) < n:
                    entries.append((request, [], texts[request][-1:]))
            if entries:
                logits = self.step(entries)
                told(logits)
                for (request, _, _), row in zip(entries, logits, strict=True):
                    texts[request].append(int(row.argmax()))
        return [texts[request] for request in range(len(SOURCES))]
