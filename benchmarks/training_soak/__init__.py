"""Random training programs under `accumulate`, `chunk` and `fit`: none ends, none is wrong."""
