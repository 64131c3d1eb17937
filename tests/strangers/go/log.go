package tidelog

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"
)

// Defaults of Options.
const (
	defaultConnectTimeout = 10 * time.Second
	defaultRequestTimeout = 30 * time.Second
	tryTimeout            = 15 * time.Second
	firstBackoff          = 100 * time.Millisecond
	longestBackoff        = time.Second
)

// Options of a connection to a cluster.
type Options struct {
	// URLs of gateways, of which there must be one at least.
	URLs []string
	// Token identifies the client; empty: it is anonymous.
	Token string
	// Name of the program, for lists and logs.
	Name string
	// ConnectTimeout bounds Connect; 0 means 10 s.
	ConnectTimeout time.Duration
	// RequestTimeout bounds each request with all its tries; 0 means 30 s.
	RequestTimeout time.Duration
	// OnlyGiven keeps the client from gateways that the cluster names.
	OnlyGiven bool
}

// Log is a client of a cluster. It keeps one connection to a gateway, and
// connects to another one where that is lost. All its methods may be called
// from many goroutines.
type Log struct {
	options  Options
	id       string
	sequence atomic.Uint64
	ctx      context.Context
	cancel   context.CancelFunc
	next     int // place of the gateway in options.URLs to try next; of keepConnected

	mu      sync.Mutex
	current *conn
	changed chan struct{} // closed when current or fatal changes
	fatal   *Error        // nothing can be done any more
	lastErr error         // of the last try to connect
	cluster string
	found   []string
	created map[string]time.Time
	ends    map[any]func()
}

// Connect connects to a cluster, at the first of its gateways that can be used.
func Connect(ctx context.Context, options Options) (*Log, error) {
	if len(options.URLs) == 0 {
		return nil, invalid("no URL")
	}
	if options.Name == "" {
		options.Name = filepath.Base(os.Args[0])
	}
	if options.ConnectTimeout == 0 {
		options.ConnectTimeout = defaultConnectTimeout
	}
	if options.RequestTimeout == 0 {
		options.RequestTimeout = defaultRequestTimeout
	}
	l := &Log{
		options: options, id: randomName(), changed: make(chan struct{}),
		created: map[string]time.Time{}, ends: map[any]func(){},
	}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	go l.keepConnected()
	ctx, cancel := context.WithTimeout(ctx, options.ConnectTimeout)
	defer cancel()
	if _, err := l.conn(ctx); err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

// randomName is a name that nobody else has.
func randomName() string {
	var data [16]byte
	rand.Read(data[:])
	return hex.EncodeToString(data[:])
}

// Close ends the client. Producers and consumers that are still open are
// abandoned.
func (l *Log) Close() {
	l.mu.Lock()
	ends := l.ends
	l.ends = map[any]func(){}
	l.mu.Unlock()
	for _, end := range ends {
		end()
	}
	l.cancel()
	l.change(func() {
		if l.fatal == nil {
			l.fatal = newError(CodeClosed, "the client is closed")
		}
		if l.current != nil {
			go l.current.fail(l.fatal)
			l.current = nil
		}
	})
}

// atEnd calls end when the log is closed; forget takes that back.
func (l *Log) atEnd(who any, end func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ends[who] = end
}

func (l *Log) forget(who any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.ends, who)
}

// change does something with the lock, and tells all who wait for a change.
func (l *Log) change(do func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	do()
	close(l.changed)
	l.changed = make(chan struct{})
}

// look returns the connection, if there is one, and what is closed at the next
// change.
func (l *Log) look() (c *conn, changed <-chan struct{}, fatal *Error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.current, l.changed, l.fatal
}

// conn waits for a connection.
func (l *Log) conn(ctx context.Context) (*conn, error) {
	for {
		c, changed, fatal := l.look()
		if fatal != nil {
			return nil, fatal
		}
		if c != nil && c.isAlive() {
			return c, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, l.unreachable()
		}
	}
}

// unreachable says why there is no connection.
func (l *Log) unreachable() *Error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var refusal *Error
	if errors.As(l.lastErr, &refusal) {
		return refusal
	}
	return newError(CodeUnreachable, "no gateway can be reached: %v", l.lastErr)
}

// nextOnce names the next request that is done once.
func (l *Log) nextOnce() once {
	return once{Client: l.id, Sequence: l.sequence.Add(1)}
}

// call sends a request that may be repeated until it is answered, and decodes
// the answer.
func (l *Log) call(ctx context.Context, op string, r request, answer any) error {
	ctx, cancel := context.WithTimeout(ctx, l.options.RequestTimeout)
	defer cancel()
	var last *Error
	backoff := firstBackoff
	for {
		c, err := l.conn(ctx)
		if err != nil {
			if last != nil {
				return last
			}
			return err
		}
		err = try(ctx, c, op, r, answer)
		if err == nil {
			return nil
		}
		wait := backoff
		var refusal *Error
		if errors.As(err, &refusal) {
			if !refusal.Retriable() {
				return refusal
			}
			last, wait = refusal, refusal.pause(backoff)
			backoff = min(2*backoff, longestBackoff)
		} else if last == nil || c.isAlive() {
			last = newError(CodeTimedOut, "no answer to %s", op).doubtful(true)
		}
		if !sleep(ctx, wait) {
			return last
		}
	}
}

// try sends a request once. An error that is no *Error is one of the
// connection, or a time-out.
func try(ctx context.Context, c *conn, op string, r request, answer any) error {
	ctx, cancel := context.WithTimeout(ctx, tryTimeout)
	defer cancel()
	type outcome struct {
		m   message
		err error
	}
	came := make(chan outcome, 1)
	c.ask(r, op, func(m message, err error) { came <- outcome{m, err} })
	select {
	case <-ctx.Done():
		return ctx.Err()
	case o := <-came:
		if o.err != nil {
			return o.err
		}
		if err := o.m.answer(answer); err != nil {
			c.fail(err)
			return err
		}
		return nil
	}
}

// sleep waits, and returns false if the context ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// poke makes a channel of one place full: whoever reads from it looks again.
func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
