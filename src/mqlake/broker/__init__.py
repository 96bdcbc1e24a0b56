"""The server: RocketMQ's name server and broker in one process, over a store. Only here sockets meet the store."""
