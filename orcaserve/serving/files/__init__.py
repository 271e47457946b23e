"""Files that clients upload for batches, and that batches write: kept in one folder, bounded, over restarts."""
