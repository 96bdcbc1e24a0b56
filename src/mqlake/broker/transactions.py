"""Transactional sends: half messages, their end, and the question to the producer about one that stays undecided."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mqlake.broker.connection import Connection
from mqlake.broker.refusals import Refusal, refuse
from mqlake.delivery.later.routing import new_key
from mqlake.delivery.properties import PRODUCER_GROUP, REAL_QUEUE_ID, REAL_TOPIC, TRANSACTION_ID, UNIQUE_KEY
from mqlake.delivery.registry.system_topics import HALF_TOPIC
from mqlake.delivery.transactions.transaction import Undecided
from mqlake.errors import NotConfirmed, StoreError
from mqlake.kernel import Command, Message, encode_record
from mqlake.message import StoredMessage
from mqlake.remoting.codes import RequestCode, ResponseCode
from mqlake.remoting.command import response
from mqlake.remoting.headers import CheckTransactionHeader, EndTransactionHeader

if TYPE_CHECKING:
    from mqlake.broker.server import Broker, Handler

COMMIT, ROLLBACK = 8, 12
KIND_MASK = 0xC


class BrokerTransactions:
    """Half messages that arrive, and their decisions."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def handlers(self) -> dict[int, Handler]:
        return {RequestCode.END_TRANSACTION: self._broker.blocking(self._end)}

    # ---- a half message

    def prepare(self, connection: Connection, command: Command, message: Message, common: dict[str, str]) -> None:
        """Store a half message, in the pool. Its answer has the half message's place and the real queue."""
        if self._broker.settings.reject_transactions:
            raise Refusal(
                ResponseCode.NO_PERMISSION,
                f"the broker[{self._broker.address}] sending transaction message is forbidden",
            )
        message.sys_flag &= ~KIND_MASK

        def store() -> Command:
            try:
                return self._prepared(command, message, common)
            except Exception as error:
                return refuse(command, error, common)

        self._broker.run(connection, command, store)

    def _prepared(self, command: Command, message: Message, common: dict[str, str]) -> Command:
        transactions = self._broker.delivery.transactions
        # An id of its own: whoever ends a transaction needs a right only on the topic of its own half message, so it
        # must not join another's by naming that one's id or key.
        receipt = transactions.store_half(message, new_key())
        late = None
        try:
            transactions.confirm()
        except NotConfirmed as error:  # it is stored: the answer says where, and what is missing
            late = refuse(command, error)
        half = self._broker.port.record(receipt.physical_offset)
        fields = {
            **common,
            "msgId": receipt.message_id,
            "queueId": half.properties[REAL_QUEUE_ID],
            "queueOffset": str(receipt.queue_offset),
            "transactionId": half.properties[UNIQUE_KEY],
        }
        if late is not None:
            return response(command, late.code, fields, remark=late.remark)
        return response(command, fields=fields)

    # ---- its end

    def _end(self, connection: Connection, command: Command) -> Command:
        """In the pool."""
        header = EndTransactionHeader.read(command.fields)
        if header.commit_or_rollback not in (COMMIT, ROLLBACK):
            return response(command)
        half = self._half(header)
        properties = half.properties
        transaction_id = properties.get(TRANSACTION_ID) or properties.get(UNIQUE_KEY) or half.message_id
        commit = header.commit_or_rollback == COMMIT
        late = header.from_transaction_check
        self._broker.delivery.transactions.decide(transaction_id, commit=commit, late=late)
        return response(command)

    def _half(self, header: EndTransactionHeader) -> StoredMessage:
        """Return the half message that a producer decides about, if it is the one that it means."""
        try:
            half = self._broker.port.record(header.commit_log_offset)
        except StoreError:
            raise Refusal(ResponseCode.SYSTEM_ERROR, "Find prepared transaction message failed") from None
        if half.topic != HALF_TOPIC or half.properties.get(PRODUCER_GROUP) != header.producer_group:
            raise Refusal(ResponseCode.SYSTEM_ERROR, "The producer group wrong")
        if half.queue_offset != header.tran_state_table_offset:
            raise Refusal(ResponseCode.SYSTEM_ERROR, "The transaction state table offset wrong")
        return half

    # ---- the question

    def ask(self, undecided: Undecided) -> None:
        """Ask a producer of the group about a transaction. Called by the worker that checks; answered by an end."""
        loop = self._broker.loop
        if not loop.is_closed():
            loop.call_soon_threadsafe(self._ask, undecided)

    def _ask(self, undecided: Undecided) -> None:
        producer = self._broker.members.producer(undecided.group)
        if producer is None:
            return
        for half in undecided.messages:
            key = half.properties.get(UNIQUE_KEY)
            header = CheckTransactionHeader(
                tran_state_table_offset=half.queue_offset,
                commit_log_offset=half.physical_offset,
                msg_id=key,
                transaction_id=key,
                offset_msg_id=half.message_id,
                topic=HALF_TOPIC,
            )
            fields = {"bname": self._broker.settings.broker_name, **header.write()}
            producer.notify(RequestCode.CHECK_TRANSACTION_STATE, fields, with_real_address(half))


def with_real_address(half: StoredMessage) -> bytes:
    """Return a half message's record with its real topic and queue, as the producer sent it."""
    properties = half.properties
    message = Message(
        properties.get(REAL_TOPIC, half.topic),
        half.raw_body,
        queue_id=0,
        properties=properties,
        flag=half.flag,
        sys_flag=half.sys_flag,
        born_timestamp=half.born_timestamp,
        born_host=half.born_host,
        reconsume_times=half.reconsume_times,
        prepared_offset=half.prepared_offset,
    )
    place = int(properties.get(REAL_QUEUE_ID, "0")), half.queue_offset, half.physical_offset
    return encode_record(message, *place, half.store_timestamp, half.store_address, False)
