"""Measure what residual connections do: gradients, Jacobians, paths and norms."""
