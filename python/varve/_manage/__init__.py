"""The manager of a run: when to save, what to keep, where to resume. `varve.CheckpointManager`."""
