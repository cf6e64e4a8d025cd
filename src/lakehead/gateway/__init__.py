"""The gateway: an HTTP server that accepts batches from agents, and shows operators what became of them."""
