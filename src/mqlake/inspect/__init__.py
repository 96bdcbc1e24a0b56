"""Look at a store from outside, and mend it: check, repair, rebuild, dump."""
