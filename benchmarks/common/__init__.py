"""What several benchmarks share: programs to measure, counts, the H100 compile, tables."""
