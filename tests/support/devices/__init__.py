"""Programs of several devices, and what the tests of the native code share."""
