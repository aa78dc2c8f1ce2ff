"""One step as several programs on several devices: `hloom.stages`."""
