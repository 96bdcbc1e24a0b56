"""What runs over logs and lakes as a job on Spark. The public names are those of `mqlake.spark`."""
