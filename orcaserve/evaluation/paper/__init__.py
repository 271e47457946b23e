"""The paper's evaluation, reproduced: figures from runs of the real scheduler, in virtual time or on this machine."""
