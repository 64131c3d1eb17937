module tidelog.bench/nats-server

go 1.24

tool github.com/nats-io/nats-server/v2

require github.com/nats-io/nats-server/v2 v2.15.2
