"""Benchmarks: what stands behind the project's claims of speed."""
