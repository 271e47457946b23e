"""B54: ids equal transformers', from a folder and from GGUF metadata."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import transformers
from tokenizers import Regex, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from orcaserve.core import CheckpointError, InvalidRequest, UnsupportedModel
from orcaserve.text.gguf_tokenizer import PRE_TOKENIZERS, tokenizer_from_metadata
from orcaserve.text.tokenizer import Tokenizer

sys.path.insert(0, str(Path(__file__).parents[1]))
from vocabularies import hf_byte_level, hf_sentencepiece


def test_b54_byte_level_from_gguf(byte_level: Tokenizer, byte_level_metadata: dict[str, Any], sample_text: str) -> None:
    assert byte_level.encode(sample_text) == hf_byte_level(byte_level_metadata).encode(sample_text)


@pytest.mark.parametrize("add_bos", [True, False, None])
def test_b54_sentencepiece_from_gguf(
    sentencepiece_metadata: dict[str, Any], sample_text: str, add_bos: bool | None
) -> None:
    metadata = dict(sentencepiece_metadata)
    if add_bos is not None:
        metadata["tokenizer.ggml.add_bos_token"] = add_bos
    ours = tokenizer_from_metadata(metadata)
    expected = hf_sentencepiece(metadata, add_bos_token=add_bos is not False)
    assert ours.encode(sample_text) == expected.encode(sample_text)
    assert ours.encode_chat(sample_text) == expected.encode(sample_text, add_special_tokens=False)
    ids = ours.encode(sample_text)
    assert ours.decode(ids) == expected.decode(ids, skip_special_tokens=True)


def test_b54_flags(sentencepiece_metadata: dict[str, Any]) -> None:
    plain = tokenizer_from_metadata(sentencepiece_metadata)
    bare = tokenizer_from_metadata({**sentencepiece_metadata, "tokenizer.ggml.add_space_prefix": False})
    closed = tokenizer_from_metadata({**sentencepiece_metadata, "tokenizer.ggml.add_eos_token": True})
    assert plain.decode(plain.encode_chat("Hello")) == "Hello" == bare.decode(bare.encode_chat("Hello"))
    assert plain.encode_chat("Hello") != bare.encode_chat("Hello")
    assert closed.encode("Hello") == [*plain.encode("Hello"), 2]
    assert plain.bos_id == 1


def test_b54_the_unknown_token_is_special(sentencepiece_metadata: dict[str, Any], byte_fallback: Tokenizer) -> None:
    """It was shown: `<unk>` in the middle of a text that transformers gives without."""
    expected = hf_sentencepiece(sentencepiece_metadata, add_bos_token=True)
    assert byte_fallback.encode("a<unk>b") == expected.encode("a<unk>b")
    ids = [1, *byte_fallback.encode_chat("the fox"), 0, *byte_fallback.encode_chat("hi")]
    assert byte_fallback.decode(ids) == expected.decode(ids, skip_special_tokens=True)
    shown = byte_fallback.decode(ids, skip_special_tokens=False)
    assert shown == expected.decode(ids, skip_special_tokens=False) and "<unk>" in shown


@pytest.mark.parametrize("name", sorted(PRE_TOKENIZERS))
def test_every_pre_tokenizer_keeps_the_text(byte_level_metadata: dict[str, Any], name: str, sample_text: str) -> None:
    tokenizer = tokenizer_from_metadata({**byte_level_metadata, "tokenizer.ggml.pre": name})
    assert tokenizer.decode(tokenizer.encode_chat(sample_text), skip_special_tokens=False) == sample_text


def test_qwen2_and_llama3_patterns(byte_level_metadata: dict[str, Any], sample_text: str) -> None:
    vocabulary = {t: i for i, t in enumerate(byte_level_metadata["tokenizer.ggml.tokens"])}
    merges = [tuple(m.split(" ")) for m in byte_level_metadata["tokenizer.ggml.merges"]]
    qwen = transformers.Qwen2Tokenizer(
        vocab=vocabulary, merges=merges, additional_special_tokens=["<|user|>", "<|end|>"]
    )
    ours = tokenizer_from_metadata({**byte_level_metadata, "tokenizer.ggml.pre": "qwen2"})
    assert ours.encode(sample_text) == qwen.encode(sample_text)


@pytest.mark.parametrize("name", ["gpt-4o", "tekken", "falcon3", "llama-bpe", "qwen2", "dbrx"])
def test_patterns_are_those_of_transformers(name: str, sample_text: str) -> None:
    from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

    theirs = pre_tokenizers.Split(Regex(GGUF_PRE_TOKENIZER_SPLITS[name]), behavior="isolated")
    bytes_of = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    expected = pre_tokenizers.Sequence([theirs, bytes_of])
    for text in (sample_text, "HTMLParser's camelCase WON'T 1234 a/b\n\n// x"):
        assert PRE_TOKENIZERS[name].build().pre_tokenize_str(text) == expected.pre_tokenize_str(text)


@pytest.mark.parametrize(
    ("name", "units"),
    [
        ("falcon", ["Hi", ',"', "ĠI", "'", "m", "Ġ", "123", "45", "!?"]),
        ("bloom", ["Hi", ",", '"', "ĠI'm", "Ġ12345", "!?"]),
    ],
)
def test_units_of_pre_tokenizers_that_transformers_knows_no_pattern_of(name: str, units: list[str]) -> None:
    cut = PRE_TOKENIZERS[name].build().pre_tokenize_str("Hi,\" I'm 12345!?")
    assert [unit for unit, _ in cut] == units


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"tokenizer.ggml.pre": "of-next-year"}, UnsupportedModel),
        ({"tokenizer.ggml.model": "rwkv"}, UnsupportedModel),
        ({"tokenizer.ggml.tokens": []}, CheckpointError),
        ({"tokenizer.ggml.tokens": [1, 2]}, CheckpointError),
        ({"tokenizer.ggml.merges": ["nopair"]}, CheckpointError),
        ({"tokenizer.ggml.merges": ["☃ ☃"]}, CheckpointError),
        ({"tokenizer.ggml.token_type": [1]}, CheckpointError),
        ({"tokenizer.ggml.bos_token_id": 10**6}, CheckpointError),
        ({"tokenizer.ggml.bos_token_id": -1}, CheckpointError),
        ({"tokenizer.ggml.pre": 7}, CheckpointError),
    ],
)
def test_damaged_metadata_stops_the_load(
    byte_level_metadata: dict[str, Any], change: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        tokenizer_from_metadata({**byte_level_metadata, **change})


def saved_folder(metadata: dict[str, Any], folder: Path, **options: Any) -> Any:
    hf = hf_byte_level(metadata)
    for name, value in options.items():
        setattr(hf, name, value)
    hf.save_pretrained(folder)
    return transformers.AutoTokenizer.from_pretrained(folder)


def test_folder_equals_transformers(byte_level_metadata: dict[str, Any], tmp_path: Path, sample_text: str) -> None:
    hf = saved_folder(byte_level_metadata, tmp_path, chat_template="{{ messages[0]['content'] }}")
    ours = Tokenizer.from_path(tmp_path)
    assert ours.encode(sample_text) == hf.encode(sample_text)
    assert ours.bos_id == hf.bos_token_id and ours.vocab_size == len(hf)
    assert ours.chat_template == "{{ messages[0]['content'] }}"
    ids = ours.encode(sample_text)
    assert ours.decode(ids) == hf.decode(ids, skip_special_tokens=True)


def test_folder_with_start_token(sentencepiece_metadata: dict[str, Any], tmp_path: Path, sample_text: str) -> None:
    hf_sentencepiece(sentencepiece_metadata, add_bos_token=True).save_pretrained(tmp_path)
    hf = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ours = Tokenizer.from_path(tmp_path)
    assert ours.encode(sample_text) == hf.encode(sample_text)
    assert ours.encode_chat(sample_text) == hf.encode(sample_text, add_special_tokens=False)
    assert ours.encode("Hello")[0] == ours.bos_id


def test_folder_without_tokenizer_and_with_a_broken_one(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match=r"tokenizer\.json"):
        Tokenizer.from_path(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(CheckpointError):
        Tokenizer.from_path(tmp_path)


def test_broken_configuration(byte_level_metadata: dict[str, Any], tmp_path: Path) -> None:
    saved_folder(byte_level_metadata, tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("[" * 100000)
    with pytest.raises(CheckpointError, match="tokenizer_config"):
        Tokenizer.from_path(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"added_tokens_decoder": {"x": 1}}')
    with pytest.raises(CheckpointError, match="added_tokens_decoder"):
        Tokenizer.from_path(tmp_path)


def test_tokens_named_in_the_configuration_only(byte_level_metadata: dict[str, Any], tmp_path: Path) -> None:
    saved_folder(byte_level_metadata, tmp_path)
    n = len(byte_level_metadata["tokenizer.ggml.tokens"])
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"added_tokens_decoder": {n: {"content": "<tool>", "special": True}}})
    )
    tokenizer = Tokenizer.from_path(tmp_path)
    assert tokenizer.encode("<tool>") == [n] and tokenizer.decode([n]) == ""


def test_default_model_is_read_right(default_model: Path) -> None:
    tokenizer = Tokenizer.from_path(default_model)
    assert tokenizer.vocab_size == 49152 and tokenizer.bos_id == 1
    assert tokenizer.encode("Hello world") == [19556, 905]
    assert tokenizer.chat_template is not None


def test_default_model_ids_equal_transformers(
    default_model: Path, default_tokenizer: Tokenizer, sample_text: str
) -> None:
    """Against transformers' pieces put together as the model's own tokenizer.json has them: digits one by one."""
    from orcaserve.checkpoint.gguf import GGUFFile

    metadata = GGUFFile(default_model).metadata
    tokens = list(metadata["tokenizer.ggml.tokens"])
    merges = [tuple(m.split(" ")) for m in metadata["tokenizer.ggml.merges"]]
    backend = Backend(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    backend.decoder = decoders.ByteLevel()
    hf = transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token=tokens[1], eos_token=tokens[2], additional_special_tokens=tokens[:17]
    )
    ids = hf.encode(sample_text)
    assert default_tokenizer.encode(sample_text) == ids
    assert default_tokenizer.decode(ids) == hf.decode(ids, skip_special_tokens=True)


def test_half_a_surrogate_pair_is_no_text(default_tokenizer: Tokenizer) -> None:
    for text in ("a\ud83e", "a" * 5000 + "\udc80"):
        with pytest.raises(InvalidRequest, match="not valid Unicode"):
            default_tokenizer.encode(text)
