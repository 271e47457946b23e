"""The joined text of a stream, whatever its ids, is what transformers' decode says of them behind the prompt.

Byte-level BPE and SentencePiece with byte fallback, from a GGUF file's metadata and from a folder of transformers' own
files; the oracle is transformers' class, given the same vocabulary.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import transformers
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from orcaserve.core import FinishReason, SamplingParams
from orcaserve.serving.text_stream import TextStream

sys.path.insert(0, str(Path(__file__).parents[1]))
from vocabularies import hf_byte_level, hf_sentencepiece


@dataclass(frozen=True)
class Pair:
    """The same tokenizer, ours and transformers'.

    n_ids: of its vocabulary. spelled: ids of single bytes. by_runs: those in a row are one text, or as many characters
    that are none.
    """

    ours: Any
    theirs: Any
    n_ids: int
    spelled: list[int]
    by_runs: bool

    def decode(self, ids: list[int], skip: bool) -> str:
        text: str = self.theirs.decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False)
        return text


@pytest.fixture(scope="module", params=["byte-level GGUF", "byte-level folder", "fallback GGUF", "fallback folder"])
def pair(
    request: pytest.FixtureRequest,
    byte_level: Any,
    byte_fallback: Any,
    byte_level_metadata: dict[str, Any],
    sentencepiece_metadata: dict[str, Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> Pair:
    kind, source = request.param.split()
    if kind == "byte-level":
        ours, theirs = byte_level, hf_byte_level(byte_level_metadata)
    else:
        ours, theirs = byte_fallback, hf_sentencepiece(sentencepiece_metadata, add_bos_token=True)
    if source == "folder":
        folder: Path = tmp_path_factory.mktemp("tokenizer")
        theirs.save_pretrained(folder)
        theirs, ours = transformers.AutoTokenizer.from_pretrained(folder), type(ours).from_path(folder)
    spelled = list(range(3, 259))  # both vocabularies have the bytes behind three others
    return Pair(ours, theirs, len(theirs), spelled, kind == "fallback")


def streamed(tokenizer: Any, prompt: list[int], output: list[int], skip: bool) -> str:
    """As the endpoint does it, token by token."""
    stream = TextStream(tokenizer, prompt, SamplingParams(skip_special_tokens=skip))
    end = len(output) - 1
    return "".join(stream.push(t, FinishReason.LENGTH if i == end else None) for i, t in enumerate(output))


@settings(max_examples=400)
@given(data=st.data(), skip=st.booleans())
def test_any_ids_after_a_text(pair: Pair, data: Any, skip: bool) -> None:
    ids = st.one_of(st.integers(0, pair.n_ids - 1), st.sampled_from(pair.spelled))
    output = data.draw(st.lists(ids, min_size=1, max_size=24))
    prompt = pair.ours.encode(data.draw(st.sampled_from(["", "a", "Once upon", " the fox", "汉", "hi\n", "Grüße "])))
    before, whole = pair.decode(prompt, skip), pair.decode(prompt + output, skip)
    assume(whole.startswith(before))  # not so if bytes that follow the prompt's make its last character none
    assert whole == before + streamed(pair.ours, prompt, output, skip)


@settings(max_examples=300)
@given(data=st.data())
def test_any_ids_after_any_ids(pair: Pair, data: Any) -> None:
    """A prompt of ids may end inside a character; what is its own text by then is never shown again."""
    ids = st.lists(st.one_of(st.integers(0, pair.n_ids - 1), st.sampled_from(pair.spelled)), min_size=1, max_size=8)
    prompt, output = data.draw(ids), data.draw(ids)
    before, whole = pair.decode(prompt, True), pair.decode(prompt + output, True)
    text = streamed(pair.ours, prompt, output, True)
    assert whole.endswith(text)
    # Pieces of bytes are decoded run by run: one more may make characters of the prompt, even a blank, into none.
    in_a_run = pair.by_runs and prompt[-1] in pair.spelled
    if whole.startswith(before) and not in_a_run:
        assert text == whole[len(before) :]
    elif not whole.startswith(before):
        shared = next(i for i, (a, b) in enumerate(zip(before + "\0", whole + "\1", strict=False)) if a != b)
        assert len(text) <= len(whole) - shared


@settings(max_examples=200)
@given(text=st.text(min_size=1, max_size=24))
def test_any_text_there_and_back(pair: Pair, text: str) -> None:
    ids = pair.ours.encode(text)
    assert ids == pair.theirs.encode(text)
    assert pair.ours.decode(ids) == pair.decode(ids, True)
