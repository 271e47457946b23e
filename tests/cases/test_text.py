"""TEXT: characters of several tokens, prompts that end inside one, pieces of bytes; and streams, whole texts and
transformers' decode of the same ids."""

from __future__ import annotations

import random
from typing import Any

import pytest
from case_server import CHAT, Server
from reciting import SCRIPT

from orcaserve import LLM, SamplingParams

CHARACTERS = ["Ď", "汉", "👩‍🚀", "🐋"]


def place(server: Server, character: str) -> tuple[int, int]:
    """Where the script's tokens of this character begin and end: the first one may have the blank before it."""
    script, encode = server.recited.script, server.recited.encode
    begin = len(encode(SCRIPT[: SCRIPT.index(character)].rstrip()))
    end = len(encode(SCRIPT[: SCRIPT.index(character) + len(character)]))
    assert server.recited.decode(script[:end]).endswith(character)
    return begin, end


@pytest.mark.parametrize("character", CHARACTERS)
def test_b01_a_character_of_several_tokens(gpt2: Server, character: str) -> None:
    script, (begin, end) = gpt2.recited.script, place(gpt2, character)
    assert end - begin > 1
    deltas = gpt2.deltas(prompt=script[:begin], max_tokens=end - begin)
    assert all("\ufffd" not in delta for delta in deltas)
    text, _ = gpt2.both(prompt=script[:begin], max_tokens=end - begin)
    assert text == "".join(deltas) == gpt2.recited.continuation(script[:begin], script[begin:end])
    assert text.strip() == character


def test_b01_all_of_them_in_one_stream(gpt2: Server) -> None:
    for path, n in (("/v1/completions", 80), (CHAT, 60)):
        deltas = gpt2.deltas(path, max_tokens=n)
        assert not any("\ufffd" in delta for delta in deltas[:-1])
        assert gpt2.both(path, max_tokens=n)[0] == "".join(deltas)
    prompt = gpt2.prompt
    assert gpt2.both(max_tokens=80)[0] == gpt2.recited.greedy_text(prompt, 80)


@pytest.mark.parametrize("character", CHARACTERS)
def test_b02_the_prompt_ends_inside_a_character(gpt2: Server, character: str) -> None:
    """What completes it is shown and nothing of the prompt; what does not leaves the broken bytes to the prompt."""
    script, (begin, end) = gpt2.recited.script, place(gpt2, character)
    whole = gpt2.recited.decode(script[:end])
    for cut in range(begin + 1, end):
        text, _ = gpt2.both(prompt=script[:cut], max_tokens=end - cut)
        known = gpt2.recited.decode(script[:cut]).rstrip("\ufffd")
        assert text == whole[len(known) :] and "\ufffd" not in text
        other, _ = gpt2.both(prompt=script[:cut], max_tokens=2, logit_bias={str(gpt2.ids("A")[0]): 100})
        assert other == "AA"


def test_b02_the_same_prompt_with_more_behind_it(gpt2: Server) -> None:
    hello = gpt2.ids("Hello world ")
    spelled = gpt2.ids("汉")
    for cut in (1, 2):
        prompt = [*hello, *spelled[:cut]]
        text, _ = gpt2.both(prompt=prompt, max_tokens=4)
        whole = gpt2.recited.decode([*prompt, *gpt2.recited.greedy(prompt, 4)])
        assert whole == "Hello world \ufffd" + text, "what was broken is the prompt's"


def test_b04_pieces_of_bytes(llama: Server) -> None:
    """The chain: ▁Once <0xEA> <0xB9> <0xB0> <0x0A> ▁upon ..."""
    recited, chain = llama.recited, llama.recited.script
    prompt = "a\nb 깰 🦙"
    assert llama.ids(prompt) == recited.encode(prompt)
    assert llama.answer(prompt=prompt)["usage"]["prompt_tokens"] == len(recited.encode(prompt))
    text, _ = llama.both(prompt=prompt, max_tokens=8)
    assert text == recited.greedy_text(recited.encode(prompt), 8)
    assert text.startswith(" Once깰\n upon a"), "the blank stays where a text goes on"
    deltas = llama.deltas(prompt=prompt, max_tokens=8)
    assert "깰" in "".join(deltas) and not any("\ufffd" in delta for delta in deltas)
    inside = [*recited.encode("fox"), *chain[1:3]]  # the prompt ends inside 깰
    assert llama.both(prompt=inside, max_tokens=2)[0] == "깰\n"


def test_b04_a_text_that_begins_a_document(llama: Server) -> None:
    text, _ = llama.both(prompt="", max_tokens=2)
    assert text == llama.recited.greedy_text([1], 2)


@pytest.fixture(scope="session")
def offline(request: pytest.FixtureRequest) -> Any:
    """offline(server) -> the same model in this process, which tells token ids too."""
    opened: dict[str, LLM] = {}

    def of(server: Server) -> LLM:
        path = server.recited.path
        if str(path) not in opened:
            opened[str(path)] = LLM(
                path, dtype="float32", quantization="none", kv_cache_dtype="float32", n_slots=1024, threads=1,
                deterministic=True,
            )  # fmt: skip
        return opened[str(path)]

    yield of
    for llm in opened.values():
        llm.close()


def test_streams_and_whole_texts_are_transformers_decode_of_the_ids(server: Server, offline: Any) -> None:
    """Drawn at the highest temperature: ids of all kinds, bytes that are no character among them, special ones too."""
    llm, recited = offline(server), server.recited
    rng = random.Random(7)
    texts = ["the quick", "Once upon a time", " the", "dog. hi"]  # none ends in a run of bytes
    kinds = set()
    for seed in range(30):
        prompt = recited.encode(rng.choice(texts))
        fields = {"temperature": 2, "seed": seed, "max_tokens": rng.randrange(1, 50)}
        shown = {"skip_special_tokens": False} if seed % 3 == 0 else {}
        bias = {str(rng.randrange(recited.vocab_size)): 12.0 for _ in range(12)}  # other tokens each time
        params = SamplingParams(**fields, **shown, logit_bias={int(k): v for k, v in bias.items()}, ignore_eos=True)  # type: ignore[arg-type]
        [generation] = llm.generate([prompt], params, progress=False)
        ids = generation.completions[0].token_ids
        kinds |= set(ids)
        text, _ = server.both(prompt=prompt, logit_bias=bias, **fields, **shown)
        skip = not shown
        before = recited.tokenizer.decode(prompt, skip_special_tokens=skip, clean_up_tokenization_spaces=False)
        whole = recited.tokenizer.decode([*prompt, *ids], skip_special_tokens=skip, clean_up_tokenization_spaces=False)
        assert whole == before + text, (seed, ids)
    assert len(kinds) > 100
