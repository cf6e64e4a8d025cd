"""How figures are printed: one line each, the same for every benchmark."""

import operator

OPERATORS = {">=": operator.ge, "<=": operator.le}


def figure(name: str, value: float, op: str, target: float) -> None:
    """Print a figure beside its target. A benchmark tells; it does not judge by its exit code."""
    met = "" if OPERATORS[op](value, target) else "  (not met)"
    print(f"ratio {name} {value:.3g} target {op} {target:g}{met}", flush=True)
