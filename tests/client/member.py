"""A member of a group as a process: prints each message it gets, and ends at SIGTERM after the message that it has.

Usage: member.py NAME_SERVER GROUP TOPIC PAUSE_S
"""

from __future__ import annotations

import signal
import sys
import time

from mqlake.client import Consumer


def main(name_server: str, group: str, topic: str, pause_s: str) -> None:
    stopping: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: stopping.append(number))
    with Consumer(name_server, group, topic, idle_s=0.1) as consumer:
        print("ready", flush=True)
        while not stopping:
            for message in consumer:
                time.sleep(float(pause_s))
                print(message.body.decode(), flush=True)
                if stopping:
                    break


if __name__ == "__main__":
    main(*sys.argv[1:])
