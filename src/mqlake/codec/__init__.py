"""Convert between bytes and values, without I/O."""
