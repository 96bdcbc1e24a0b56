"""The store as a Spark table compared with a Kafka topic of the same messages, read by Spark's own Kafka source.

Spark's connector exists up to 4.2.0, so both sides run on PySpark 4.2.0, from a separate folder under `bench-out`.
"""
