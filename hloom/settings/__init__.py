"""Settings of a process: the environment's variables, and the programs that passes run on."""
