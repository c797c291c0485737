"""The streaming runtime in one process: decode, shard, tasks, worker, projector, CLI."""
