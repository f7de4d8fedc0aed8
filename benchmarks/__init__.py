"""Side-by-side measurements; each is one command: python -m benchmarks.NAME."""
