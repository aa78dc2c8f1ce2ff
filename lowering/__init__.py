"""Lowers the marks of passes to kernels: custom calls, or the marks' decompositions."""
