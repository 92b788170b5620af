"""Benchmarks of Varve against the tools its users have today; `bench/README.md` is the argument."""
