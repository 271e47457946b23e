"""Many requests as one file, answered as the engine has room: `/v1/batches`, and `orcaserve run-batch`."""
