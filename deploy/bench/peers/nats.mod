module tidelog.bench/nats

go 1.24

tool github.com/nats-io/natscli/nats

require github.com/nats-io/natscli v0.3.0
