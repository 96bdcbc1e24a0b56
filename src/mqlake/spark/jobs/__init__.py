"""Spark jobs over logs and lakes. `mqlake.spark` has the public names."""
