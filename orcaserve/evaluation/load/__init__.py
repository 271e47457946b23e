"""Load on a server, over HTTP alone: any that speaks OpenAI's API. `orcaserve bench serve` uses it."""
