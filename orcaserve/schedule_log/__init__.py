"""The schedule as a file: written by the loop as it happens, read by people and by replays."""
