"""The framework of passes: their base class, options, specs, pipeline, registry and errors."""
