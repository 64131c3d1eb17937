package main

import (
	"context"

	"example.org/tidelog"
)

func init() {
	commands["create_token"] = withLog(func(_ *driver, ctx context.Context, c *command, l *tidelog.Log) (any, error) {
		token, err := l.CreateToken(ctx, c.Principal, seconds(c.LifetimeS))
		return map[string]any{"token": token}, err
	})
	commands["rotate_token"] = withLog(func(_ *driver, ctx context.Context, c *command, l *tidelog.Log) (any, error) {
		token, err := l.RotateToken(ctx, c.TokenID, seconds(c.GraceS))
		return map[string]any{"token": token}, err
	})
	commands["revoke_token"] = withLog(func(_ *driver, ctx context.Context, c *command, l *tidelog.Log) (any, error) {
		return nil, l.RevokeToken(ctx, c.TokenID)
	})
	commands["revoke_tokens_of"] = withLog(func(_ *driver, ctx context.Context, c *command, l *tidelog.Log) (any, error) {
		return nil, l.RevokeTokensOf(ctx, c.Principal)
	})
	commands["rotate_ticket_keys"] = withLog(func(_ *driver, ctx context.Context, _ *command, l *tidelog.Log) (any, error) {
		return nil, l.RotateTicketKeys(ctx)
	})
	commands["alter_acls"] = withLog(func(_ *driver, ctx context.Context, c *command, l *tidelog.Log) (any, error) {
		return nil, l.AlterRules(ctx, c.Add, c.Remove)
	})
	commands["alter_quotas"] = withLog(func(_ *driver, ctx context.Context, c *command, l *tidelog.Log) (any, error) {
		return nil, l.AlterQuotas(ctx, c.Quotas)
	})
	commands["access"] = withLog(access)
}

func access(_ *driver, ctx context.Context, _ *command, l *tidelog.Log) (any, error) {
	a, err := l.Access(ctx)
	tokens, quotas := []map[string]any{}, []map[string]any{}
	for _, t := range a.Tokens {
		tokens = append(tokens, map[string]any{"token_id": t.TokenID, "principal": t.Principal})
	}
	for _, q := range a.Quotas {
		quotas = append(quotas, map[string]any{
			"principal": q.Principal, "bytes_in_s": orNone(q.BytesInS), "bytes_out_s": orNone(q.BytesOutS),
			"requests_s": orNone(q.RequestsS), "connections": orNone(q.Connections),
		})
	}
	rules := a.Rules
	if rules == nil {
		rules = []tidelog.Rule{}
	}
	return map[string]any{"tokens": tokens, "acls": rules, "quotas": quotas}, err
}
