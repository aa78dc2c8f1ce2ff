"""What a pass is, and what runs it: options, specs, the pipeline, the registry, errors."""
