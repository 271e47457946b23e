"""What lies in a model's files, without torch. The endpoint (tokenizer) and the worker (weights) read through it."""

from orcaserve.checkpoint.checkpoint import Checkpoint, eos_ids, open_checkpoint
from orcaserve.checkpoint.dequantise import dequantise
from orcaserve.checkpoint.tensor_info import TensorInfo

__all__ = ["Checkpoint", "TensorInfo", "dequantise", "eos_ids", "open_checkpoint"]
