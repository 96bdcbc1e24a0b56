"""A client for RocketMQ brokers, mqlake's own among them: producer, consumer and admin over the remoting protocol.

from mqlake.client import Consumer, Producer
"""

from mqlake.client.admin import AsyncAdmin
from mqlake.client.blocking import Admin, Consumer, Producer, Transaction
from mqlake.client.consumer import AsyncConsumer
from mqlake.client.producer import AsyncProducer
from mqlake.client.security import Credentials
from mqlake.client.sending import SendReceipt, SendStatus
from mqlake.client.transactions import AsyncTransaction

__all__ = [
    "Admin",
    "AsyncAdmin",
    "AsyncConsumer",
    "AsyncProducer",
    "AsyncTransaction",
    "Consumer",
    "Credentials",
    "Producer",
    "SendReceipt",
    "SendStatus",
    "Transaction",
]
