package tidelog

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"net/url"
	"slices"
	"time"
)

const (
	firstPause    = 50 * time.Millisecond
	longestPause  = time.Second
	discoverEvery = 5 * time.Minute
)

// keepConnected connects, and connects again when the connection is lost.
func (l *Log) keepConnected() {
	for l.ctx.Err() == nil {
		c, err := l.reach()
		if err != nil {
			var refusal *Error
			if errors.As(err, &refusal) {
				l.change(func() {
					if l.fatal == nil {
						l.fatal = refusal
					}
				})
			}
			return
		}
		l.change(func() {
			if l.fatal != nil {
				go c.fail(l.fatal)
				return
			}
			l.current, l.cluster = c, c.welcome.Cluster
		})
		if !l.options.OnlyGiven {
			go l.discover(c)
		}
		select {
		case <-c.done:
		case <-l.ctx.Done():
			return
		}
		l.change(func() {
			l.current = nil
			l.lastErr = c.err
		})
	}
}

// reach tries the given gateways in turn, then one that was found, then the
// given ones again. It gives up where all given ones do not admit the client.
func (l *Log) reach() (*conn, error) {
	pause := firstPause
	for round := 0; ; round++ {
		denied, longest := 0, time.Duration(0)
		var denial error
		try := func(url, cluster string) *conn {
			c, err := dial(l.ctx, url, l.hello(cluster))
			if err == nil {
				return c
			}
			l.mu.Lock()
			l.lastErr = err
			l.mu.Unlock()
			var refusal *Error
			if errors.As(err, &refusal) {
				longest = max(longest, refusal.pause(0))
				if refusal.Code == CodeUnauthenticated || refusal.Code == CodeForbidden {
					denied++
					denial = refusal
				}
			}
			return nil
		}
		for range l.options.URLs {
			url := l.options.URLs[l.next%len(l.options.URLs)]
			l.next++
			if c := try(url, ""); c != nil {
				return c, nil
			}
		}
		if denied == len(l.options.URLs) {
			return nil, denial
		}
		l.mu.Lock()
		found, cluster := l.found, l.cluster
		l.mu.Unlock()
		if len(found) > 0 {
			if c := try(found[round%len(found)], cluster); c != nil {
				return c, nil
			}
		}
		if !sleep(l.ctx, max(pause, longest)) {
			return nil, l.ctx.Err()
		}
		pause = min(2*pause, longestPause)
	}
}

func (l *Log) hello(cluster string) helloRequest {
	return helloRequest{
		Version: protocolVersion, VersionMin: protocolVersion, VersionMax: protocolVersion,
		Role: "client", Node: l.options.Name, Cluster: cluster, Token: l.options.Token,
		Capabilities: []string{"strict", "conditional_append"},
	}
}

// discover asks for the gateways of the cluster now and then.
func (l *Log) discover(c *conn) {
	for c.isAlive() {
		var answer metadataAnswer
		if err := try(l.ctx, c, "metadata", &metadataRequest{}, &answer); err == nil {
			l.learn(answer.Gateways, c.url)
		}
		select {
		case <-c.done:
		case <-time.After(discoverEvery):
		}
	}
}

// learn takes over the gateways that an answer names.
func (l *Log) learn(gateways []gatewayInfo, asked string) {
	if len(gateways) == 0 || l.options.OnlyGiven {
		return
	}
	var found []string
	for _, g := range gateways {
		if mayGoOn(g.URL, asked, l.options.URLs) && !slices.Contains(l.options.URLs, g.URL) {
			found = append(found, g.URL)
		}
	}
	rand.Shuffle(len(found), func(i, j int) { found[i], found[j] = found[j], found[i] })
	l.mu.Lock()
	defer l.mu.Unlock()
	l.found = found
}

// mayGoOn tells whether a found address is at least as safe as those that were
// given.
func mayGoOn(found, asked string, given []string) bool {
	u, err := url.Parse(found)
	if err != nil || len(found) > 255 || u.User != nil || u.RawQuery != "" || u.Hostname() == "" ||
		u.Scheme != "ws" && u.Scheme != "wss" {
		return false
	}
	for _, r := range found {
		if r <= ' ' || r > '~' {
			return false
		}
	}
	if isLocal(u) {
		a, err := url.Parse(asked)
		if err != nil || !isLocal(a) {
			return false
		}
	}
	if u.Scheme == "wss" {
		return true
	}
	remote := false
	for _, text := range given {
		g, err := url.Parse(text)
		if err != nil || g.Scheme == "wss" {
			return false
		}
		remote = remote || !isLocal(g)
	}
	return isLocal(u) || remote
}

// isLocal tells whether the address is one of this machine.
func isLocal(u *url.URL) bool {
	ip := net.ParseIP(u.Hostname())
	return u.Hostname() == "localhost" || ip != nil && ip.IsLoopback()
}

// until bounds a context that has no deadline by a time-out.
func until(ctx context.Context, timeout time.Duration) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, timeout)
}
