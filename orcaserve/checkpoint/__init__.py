"""What lies in a model's files, without torch. The endpoint (tokenizer) and the worker (weights) read through it.

Imports nothing by itself: the command line finds models through `locate` and must not wait for numpy.
"""
