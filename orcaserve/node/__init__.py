"""One machine's workers: how they are started, and how a machine that is not the master's joins an engine."""
