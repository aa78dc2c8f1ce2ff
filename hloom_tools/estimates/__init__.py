"""Memory and added time of a program under each budget, uncompiled: `hloom.estimate`."""
