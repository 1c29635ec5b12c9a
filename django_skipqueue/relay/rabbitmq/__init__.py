"""What a relay and the senders of outcomes need of RabbitMQ: a connection that never waits, frames, queues."""
