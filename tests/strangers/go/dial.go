package tidelog

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/coder/websocket"
)

const (
	protocolVersion = 1
	subprotocol     = "tidelog.v1"
	welcomeTimeout  = 5 * time.Second
)

// dial connects to a gateway and waits for its welcome. An *Error is that of
// the gateway.
func dial(ctx context.Context, url string, hello helloRequest) (*conn, error) {
	ctx, cancel := context.WithTimeout(ctx, welcomeTimeout)
	defer cancel()
	var c *conn
	heard := func() {
		if c != nil {
			c.heard()
		}
	}
	ws, _, err := websocket.Dial(ctx, url, &websocket.DialOptions{
		Subprotocols:    []string{subprotocol},
		CompressionMode: websocket.CompressionDisabled,
		OnPingReceived:  func(context.Context, []byte) bool { heard(); return true },
		OnPongReceived:  func(context.Context, []byte) { heard() },
	})
	if err != nil {
		return nil, err
	}
	c = newConn(ws, url)
	if err := c.greet(ctx, hello); err != nil {
		ws.CloseNow()
		return nil, err
	}
	c.start()
	return c, nil
}

// greet sends hello and takes the welcome.
func (c *conn) greet(ctx context.Context, hello helloRequest) error {
	if c.ws.Subprotocol() != subprotocol {
		return errors.New("the server does not speak " + subprotocol)
	}
	c.ws.SetReadLimit(maxMessageBytes)
	hello.Op, hello.ID = "hello", c.nextID
	c.nextID++
	data, err := encodeMessage(hello, nil)
	if err != nil {
		return err
	}
	if err := c.ws.Write(ctx, websocket.MessageBinary, data); err != nil {
		return err
	}
	if data, err = c.readOne(ctx); err != nil {
		return err
	}
	m, err := parseMessage(data)
	if err != nil {
		return err
	}
	if m.Re == nil || *m.Re != hello.ID {
		return errors.New("no answer to hello")
	}
	if m.Error != nil {
		return m.Error
	}
	if err := m.answer(&c.welcome); err != nil {
		return err
	}
	if c.welcome.Role != "gateway" {
		return newError(CodeUnsupported, "%s is a %s, no gateway", c.url, c.welcome.Role)
	}
	if v := c.welcome.Version; v < hello.VersionMin || v > hello.VersionMax {
		return newError(CodeUnsupported, "%s speaks version %d, which was not offered", c.url, v)
	}
	if hello.Cluster != "" && c.welcome.Cluster != hello.Cluster {
		return fmt.Errorf("%s belongs to another cluster", c.url)
	}
	if most := c.welcome.MaxMessageBytes; most > maxMessageBytes {
		c.ws.SetReadLimit(most)
	}
	return nil
}
