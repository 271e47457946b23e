"""Measuring: the engine that serves, given work of known size, watched with a clock. `orcaserve bench` uses it."""
