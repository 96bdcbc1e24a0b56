"""The store as a Spark table beside a Kafka topic with the same messages, read by Spark's own Kafka source.

Spark's connector exists up to 4.2.0, so both sides run on PySpark 4.2.0, from a folder of its own under `bench-out`.
"""
