"""The queues that a pipeline can read: adapters of `consume.queue.Queue`, one module each."""
