module tidelog.bench/liftbridge

go 1.24

tool github.com/liftbridge-io/liftbridge

require (
	github.com/liftbridge-io/liftbridge v1.9.0
	github.com/liftbridge-io/liftbridge-api v1.9.0
)
