"""StableHLO modules from a folder through every pass: `python -m benchmarks.corpora.run FOLDER`."""
