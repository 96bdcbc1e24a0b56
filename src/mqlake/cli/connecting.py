"""How to connect to a broker that was just started: a few lines of Java, Go and Python to copy."""

from __future__ import annotations

TEXT = """
Connect with (Ctrl-C stops the broker):

  Java    DefaultMQProducer producer = new DefaultMQProducer("my-group");
          producer.setNamesrvAddr("{address}");
          producer.start();
          producer.send(new Message("my-topic", "hello".getBytes()));

  Go      p, _ := rocketmq.NewProducer(producer.WithNameServer([]string{{"{address}"}}))
          _ = p.Start()
          _, _ = p.SendSync(context.Background(), primitive.NewMessage("my-topic", []byte("hello")))

  Python  from rocketmq.client import Message, Producer    # pip install rocketmq
          producer = Producer("my-group")
          producer.set_namesrv_addr("{address}")
          producer.start()
          message = Message("my-topic")
          message.set_body("hello")
          producer.send_sync(message)
"""


def how_to_connect(name_server: str) -> str:
    """Return what a person wants to read after the ready line."""
    return TEXT.format(address=name_server)
