"""RocketMQ's remoting protocol without sockets: frames, command headers, codes and bodies, for servers and clients."""
