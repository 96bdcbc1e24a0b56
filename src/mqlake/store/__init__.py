"""A message's life, one stage a module: put, flush, dispatch, read, recover."""
