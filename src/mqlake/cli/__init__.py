"""The `mqlake` command: thin commands over the public names. Only this folder needs click and rich."""
