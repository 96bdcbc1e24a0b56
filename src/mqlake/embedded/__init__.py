"""SQL over stores inside this process, by DuckDB: no JVM, so an answer at once. For small stores."""
