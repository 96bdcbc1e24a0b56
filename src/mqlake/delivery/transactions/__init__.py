"""Transactions: half messages, and the operations that end them."""
