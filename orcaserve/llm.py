"""LLM: the offline Python API. The scheduler and engine that serve, in this process, without HTTP.

from orcaserve import LLM, SamplingParams

with LLM() as llm:
    for result in llm.generate(["The sea is", "1, 2, 3,"], SamplingParams(max_tokens=20)):
        print(result.completions[0].text)
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, cast

from tqdm import tqdm

from orcaserve.checkpoint.locate import locate_model, model_name
from orcaserve.checkpoint.lora import named_adapters
from orcaserve.checkpoint.pooling import read_pooling
from orcaserve.config import (
    AdaptersConfig,
    DType,
    EngineConfig,
    KVConfig,
    KVDType,
    ModelConfig,
    ParallelConfig,
    PolicyName,
    Quantization,
    SchedulerConfig,
    may_share_prefixes,
)
from orcaserve.core import (
    EngineError,
    Grammar,
    InvalidRequest,
    IterationReport,
    Logprobs,
    Pooling,
    Progress,
    Request,
    SamplingParams,
    TokenLogprobs,
    fan_out,
)
from orcaserve.engine.host import EngineHost
from orcaserve.serving.chat_template import ChatTemplate
from orcaserve.serving.conversation import ChatEncoder, read_conversation
from orcaserve.serving.text_stream import TextStream
from orcaserve.serving.vectors import read_vector, shortened
from orcaserve.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from orcaserve.text.compiler import Compiler

Prompt = str | Sequence[int]
CHAT_PARAMS = SamplingParams(max_tokens=512)
MAX_COMPILED = 256  # grammars that are known to be good


@dataclass(slots=True)
class Completion:
    """One choice for a prompt: its text, the ids it was made of, and why it ended (`stop`, `length` or `error`).

    error: what went wrong with this request alone, for finish_reason `error`.
    logprobs: of each of token_ids, if params.logprobs asked for them.
    """

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    error: str | None = None
    logprobs: list[TokenLogprobs] | None = None


@dataclass(slots=True)
class Generation:
    """What became of one prompt: `params.n` completions.

    prompt_logprobs: of each of prompt_token_ids, None of the first, if params.prompt_logprobs asked for them. With
    max_tokens 0 that is all there is.
    n_cached: of prompt_token_ids, those whose keys and values were there already when the first completion began.
    """

    prompt: str | None
    prompt_token_ids: list[int]
    completions: list[Completion]
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    n_cached: int = 0


@dataclass(slots=True)
class _Choice:
    """A request under way and the completion it fills."""

    request: Request
    text: TextStream
    completion: Completion
    generation: Generation | None = None  # where to enter what is told of the prompt: of its first choice
    embedding: bytes | None = None

    def take(self, news: Progress) -> str:
        """Enter news into the completion; returns the new text."""
        delta = self.text.push(news.token, news.finish_reason)
        self.completion.text += delta
        if news.token is not None:
            self.completion.token_ids.append(news.token)
        if self.generation is not None and news.began is not None:
            self.generation.n_cached = news.began.n_cached
        if news.logprobs is not None:
            self._note(news.logprobs)
        self.embedding = news.embedding
        if self.text.finish_reason is not None:
            self.completion.finish_reason = self.text.finish_reason.value
            self.completion.error = news.error
        return delta

    def _note(self, logprobs: Logprobs) -> None:
        if logprobs.token is not None and self.completion.logprobs is not None:
            self.completion.logprobs.append(logprobs.token)
        if self.generation is not None and self.generation.prompt_logprobs is not None and logprobs.prompt:
            self.generation.prompt_logprobs = [None, *logprobs.prompt]


class LLM:
    """A loaded model. One call at a time; close it, or use `with`.

    model: None = the default model; a GGUF file or checkpoint folder; or a hub name.
    dtype, quantization, kv_cache_dtype: how weights and K/V are held; `auto` never makes a full-precision file coarser.
    device: cpu; cuda, cuda:N; or reference, the readable PyTorch path on the CPU.
    max_num_seqs: the paper's max_bs; n_slots / kv_cache_memory_bytes: size of the K/V region.
    scheduling_policy: who chooses the next batch; microbatch_size: of request-level alone (docs/scheduling.md).
    max_num_batched_tokens: most input tokens of an iteration; None: any number, for nobody here watches the gaps of
    a stream.
    pipeline_parallel_size, tensor_parallel_size, layer_split: cut the model over processes, which end with the thread
    that made this object.
    deterministic: refuse what could make a request's numbers depend on what runs beside it (docs/determinism.md).
    enable_prefix_caching: prompts share keys and values of equal beginnings, of earlier calls too
    (docs/prefix_reuse.md); None: if the policy is iteration-level.
    lora_modules: adapters by name, each a folder as PEFT saves it, which `lora_request` names (docs/lora.md).
    max_loras: most of them; max_lora_rank: the largest rank that one may have.
    Raises ModelError if the model cannot be had, ConfigError if a setting is wrong or memory does not suffice.
    """

    def __init__(
        self,
        model: str | Path | None = None,
        *,
        dtype: DType = "auto",
        quantization: Quantization = "auto",
        kv_cache_dtype: KVDType = "auto",
        device: str = "cpu",
        max_model_len: int | None = None,
        max_num_seqs: int = 64,
        scheduling_policy: PolicyName = "iteration-level",
        microbatch_size: int | None = None,
        max_num_batched_tokens: int | None = None,
        n_slots: int | None = None,
        kv_cache_memory_bytes: int | None = None,
        threads: int | None = None,
        pipeline_parallel_size: int = 1,
        tensor_parallel_size: int = 1,
        layer_split: Sequence[int] | None = None,
        deterministic: bool = False,
        enable_prefix_caching: bool | None = None,
        lora_modules: Mapping[str, str | Path] | None = None,
        max_loras: int = 8,
        max_lora_rank: int = 64,
    ) -> None:
        name = None if model is None else str(model)
        path = locate_model(name)
        adapters = named_adapters((lora_modules or {}).items(), model_name(name))
        self._open(
            EngineConfig(
                ModelConfig(path, model_name(name), dtype, quantization, device, max_model_len, threads),
                KVConfig(n_slots, kv_cache_memory_bytes, kv_cache_dtype),
                SchedulerConfig(
                    max_num_seqs,
                    scheduling_policy,
                    microbatch_size,
                    max_num_batched_tokens=max_num_batched_tokens,
                    prefix_caching=(
                        may_share_prefixes(scheduling_policy)
                        if enable_prefix_caching is None
                        else enable_prefix_caching
                    ),
                ),
                ParallelConfig(
                    pipeline_parallel_size, tensor_parallel_size, None if layer_split is None else tuple(layer_split)
                ),
                deterministic=deterministic,
                adapters=AdaptersConfig(adapters, max_loras, max_lora_rank),
            )
        )

    @classmethod
    def from_config(cls, config: EngineConfig) -> LLM:
        llm = cls.__new__(cls)
        llm._open(config)
        return llm

    def _open(self, config: EngineConfig) -> None:
        self._path = config.model.path
        self._adapters = {adapter.name: adapter.number for adapter in config.adapters.modules}
        self.tokenizer = Tokenizer.from_path(config.model.path)
        self._news: SimpleQueue[IterationReport | None] = SimpleQueue()  # None: the engine has failed
        self._host = EngineHost.load(config, self._news.put, lambda _: self._news.put(None))
        self.facts = self._host.facts
        self._ids = count(1)
        self._free = threading.Lock()
        self._compiler: Compiler | None = None  # once there is a grammar
        self._compiled: set[Grammar] = set()

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        lora_request: str | Sequence[str | None] | None = None,
        progress: bool | None = None,
    ) -> list[Generation]:
        """Continue all prompts, many at a time; results come in the order of the prompts.

        prompts: a text, texts, token ids, or lists of token ids. params: one for all, or one each.
        lora_request: the name of an adapter, or None for the model itself; one for all, or one each.
        progress: a bar on standard error; None = if standard error is a terminal.
        Raises InvalidRequest before anything runs if one of them cannot be served, EngineError if the engine fails.
        """
        listed = _as_list(prompts)
        each = [params or SamplingParams()] * len(listed) if not isinstance(params, Sequence) else list(params)
        if len(each) != len(listed):
            raise InvalidRequest("params", f"got {len(each)} params for {len(listed)} prompts")
        names = [lora_request] * len(listed) if lora_request is None or isinstance(lora_request, str) else lora_request
        if len(names) != len(listed):
            raise InvalidRequest("lora_request", f"got {len(names)} names for {len(listed)} prompts")
        results, choices = [], []
        for prompt, its_params, adapter in zip(listed, each, map(self._adapter, names), strict=True):
            ids = self.tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)
            its_choices = self._choices(ids, its_params, adapter)
            choices += its_choices
            text = prompt if isinstance(prompt, str) else None
            result = Generation(text, ids, [choice.completion for choice in its_choices])
            its_choices[0].generation = result
            if its_params.prompt_logprobs is not None:
                result.prompt_logprobs = [None]
            results.append(result)
        hidden = not (sys.stderr.isatty() if progress is None else progress)
        with tqdm(total=len(choices), disable=hidden, unit="request", file=sys.stderr) as bar:
            for tokens, (choice, _) in enumerate(self._run(choices), 1):
                if choice.completion.finish_reason:
                    bar.update()
                    bar.set_postfix_str(f"{tokens / max(bar.format_dict['elapsed'], 1e-9):.0f} tokens/s", refresh=False)
        return results

    def embed(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        pooling: Literal["mean", "last"] | None = None,
        dimensions: int | None = None,
        normalize: bool = True,
    ) -> list[list[float]]:
        """A vector for each prompt, many at a time (docs/embeddings.md).

        pooling: of which tokens' hidden states; None: as the model's files say, else of the last one's. dimensions: the
        first so many numbers of each. normalize: to length 1.
        Raises InvalidRequest before anything runs if one of them cannot be served, UnsupportedModel if the files say
        what is not served, EngineError if the engine fails, or one of them.
        """
        if dimensions is not None and not 1 <= dimensions <= self.facts.embedding_size:
            message = f"dimensions must be an integer from 1 to {self.facts.embedding_size}"
            raise InvalidRequest("dimensions", message)
        kinds: dict[str, Pooling] = {kind.value: kind for kind in Pooling}
        if pooling is not None and pooling not in kinds:
            raise InvalidRequest("pooling", f"pooling must be {' or '.join(kinds)}")
        params = SamplingParams(max_tokens=0, pooling=kinds[pooling] if pooling else read_pooling(self._path))
        choices = []
        for prompt in _as_list(prompts):
            ids = self.tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)
            choices += self._choices(ids, params)
        for choice, _ in self._run(choices):
            if choice.completion.error is not None:
                raise EngineError(choice.completion.error)
        vectors = [read_vector(choice.embedding or b"") for choice in choices]
        return [shortened(vector, dimensions, normalize).tolist() for vector in vectors]

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        params: SamplingParams | None = None,
        *,
        lora_request: str | None = None,
    ) -> Completion:
        """Answer a conversation: messages with `role` and `content`, as OpenAI's API has them."""
        choice = self._one_choice(self._render(messages), params or CHAT_PARAMS, lora_request)
        for _ in self._run([choice]):
            pass
        return choice.completion

    def stream(
        self, prompt: Prompt, params: SamplingParams | None = None, *, lora_request: str | None = None
    ) -> Iterator[str]:
        """Continue one prompt; yields text as it comes. Leaving the iterator cancels the request."""
        ids = self.tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)
        return self._stream(self._one_choice(ids, params or SamplingParams(), lora_request))

    def stream_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        params: SamplingParams | None = None,
        *,
        lora_request: str | None = None,
    ) -> Iterator[str]:
        """Answer a conversation; yields text as it comes."""
        return self._stream(self._one_choice(self._render(messages), params or CHAT_PARAMS, lora_request))

    def close(self) -> None:
        """End the engine. Idempotent."""
        self._host.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def _render(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        if self.tokenizer.chat_template is None:
            raise InvalidRequest("messages", "this model has no chat template")
        template = ChatTemplate(self.tokenizer.chat_template, self.tokenizer.special_tokens)
        conversation = read_conversation({"messages": list(map(dict, messages))})
        return ChatEncoder(template, self.tokenizer).encode(conversation, self.facts.longest_prompt)

    def _adapter(self, name: str | None) -> int:
        """Its number. Raises InvalidRequest."""
        if name is None:
            return 0
        number = self._adapters.get(name)
        if number is None:
            known = ", ".join(self._adapters) or "none: name some in lora_modules"
            raise InvalidRequest("lora_request", f"{name!r} is none of the adapters that are loaded ({known})")
        return number

    def _choices(self, ids: list[int], params: SamplingParams, adapter: int = 0) -> list[_Choice]:
        """params.n requests over the same prompt. Raises InvalidRequest if they cannot be served."""
        if not ids and self.tokenizer.bos_id is not None:
            ids.append(self.tokenizer.bos_id)
        requests = fan_out(self._ids, ids, params, self.facts, adapter=adapter)
        if params.grammar is not None and params.grammar not in self._compiled:
            self._check_grammar(params.grammar)
        return [
            _Choice(
                request,
                TextStream(self.tokenizer, ids if self.facts.source is None else (), params),
                Completion(index, logprobs=None if params.logprobs is None else []),
            )
            for index, request in enumerate(requests)
        ]

    def _check_grammar(self, grammar: Grammar) -> None:
        """Raises InvalidRequest if it cannot be compiled."""
        if self._compiler is None:
            from orcaserve.text.compiler import Compiler  # late: most have no grammar

            self._compiler = Compiler(self.tokenizer.vocabulary(self.facts.vocab_size, self.facts.eos_ids))
        self._compiler.compile(grammar)
        if len(self._compiled) == MAX_COMPILED:
            self._compiled.clear()
        self._compiled.add(grammar)

    def _one_choice(self, ids: list[int], params: SamplingParams, lora_request: str | None) -> _Choice:
        if params.n != 1:
            raise InvalidRequest("n", "n must be 1 here: several texts cannot share one stream")
        return self._choices(ids, params, self._adapter(lora_request))[0]

    def _stream(self, choice: _Choice) -> Iterator[str]:
        for _, delta in self._run([choice]):
            if delta:
                yield delta
        if choice.completion.error is not None:
            raise EngineError(choice.completion.error)

    def _run(self, choices: Sequence[_Choice]) -> Iterator[tuple[_Choice, str]]:
        """Run requests to their end; yields each choice with its new text, once per token."""
        if not self._free.acquire(blocking=False):
            raise EngineError("this LLM is in use: finish or close the stream that is open")
        live = {choice.request.id: choice for choice in choices}
        try:
            self._host.submit([choice.request for choice in choices])
            while live:
                report = self._news.get()
                if report is None:
                    raise EngineError("the engine has failed; its log tells why")
                for news in report.progress:
                    choice = live.get(news.request_id)
                    if choice is None:
                        continue  # of a call that was left early, or past a stop string
                    delta = choice.take(news)
                    if choice.completion.finish_reason is not None:
                        del live[news.request_id]
                        if news.finish_reason is None:  # a stop string, which only we can see
                            self._host.cancel([news.request_id])
                    yield choice, delta
        finally:
            if live:
                self._host.cancel(list(live))
            self._free.release()


def _as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt or several -> several. A sequence of numbers is one prompt; an empty sequence is no prompt at all."""
    if isinstance(prompts, str) or (prompts and isinstance(prompts[0], int)):
        return [cast(Prompt, prompts)]
    return list(cast(Sequence[Prompt], prompts))
