"""Programs that run in the environments of other tools, beside which `make bench-extract` measures Lakehead."""
