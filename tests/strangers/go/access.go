package tidelog

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"strings"
	"time"
)

// Rule allows or denies a principal an operation on a resource.
type Rule struct {
	Principal string `cbor:"principal" json:"principal"`
	Operation string `cbor:"operation" json:"operation"`
	Resource  string `cbor:"resource" json:"resource"`
	Deny      bool   `cbor:"deny,omitempty" json:"deny"`
}

// Quota is what each gateway lets a principal have; nil: as much as it likes.
type Quota struct {
	Principal   string `cbor:"principal" json:"principal"`
	BytesInS    *int64 `cbor:"bytes_in_s,omitempty" json:"bytes_in_s"`
	BytesOutS   *int64 `cbor:"bytes_out_s,omitempty" json:"bytes_out_s"`
	RequestsS   *int64 `cbor:"requests_s,omitempty" json:"requests_s"`
	Connections *int64 `cbor:"connections,omitempty" json:"connections"`
}

// TokenInfo tells of a token without anything that would help to use it.
type TokenInfo struct {
	TokenID   string `cbor:"token_id" json:"token_id"`
	Principal string `cbor:"principal" json:"principal"`
	CreatedMs int64  `cbor:"created_ms" json:"created_ms"`
	ExpiresMs *int64 `cbor:"expires_ms" json:"expires_ms"`
}

// Access is who may do what.
type Access struct {
	Tokens []TokenInfo `cbor:"tokens"`
	Rules  []Rule      `cbor:"acls"`
	Quotas []Quota     `cbor:"quotas"`
}

type putTokenRequest struct {
	requestHead
	TokenID    string `cbor:"token_id"`
	Digest     string `cbor:"digest"`
	Principal  string `cbor:"principal,omitempty"`
	LifetimeMs int64  `cbor:"lifetime_ms"`
	Replaces   string `cbor:"replaces,omitempty"`
	GraceMs    int64  `cbor:"grace_ms,omitempty"`
	once
}

type revokeTokensRequest struct {
	requestHead
	TokenID   string `cbor:"token_id,omitempty"`
	Principal string `cbor:"principal,omitempty"`
	once
}

type rotateTicketKeysRequest struct {
	requestHead
	once
}

type alterACLsRequest struct {
	requestHead
	Add    []Rule `cbor:"add,omitempty"`
	Remove []Rule `cbor:"remove,omitempty"`
	once
}

type alterQuotasRequest struct {
	requestHead
	Quotas []Quota `cbor:"quotas,omitempty"`
	once
}

type describeAccessRequest struct{ requestHead }

const tokenPrefix = "tide_"

// newToken makes a token; the cluster is told only its id and digest.
func newToken() string {
	var id [8]byte
	var secret [32]byte
	rand.Read(id[:])
	rand.Read(secret[:])
	return tokenPrefix + hex.EncodeToString(id[:]) + "_" + base64.RawURLEncoding.EncodeToString(secret[:])
}

// TokenID is the id in the text of a token.
func TokenID(token string) string {
	id, _, _ := strings.Cut(strings.TrimPrefix(token, tokenPrefix), "_")
	return id
}

// tokenDigest is what the cluster keeps of a token.
func tokenDigest(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}

// CreateToken makes a token of the principal; lifetime 0: it does not expire.
func (l *Log) CreateToken(ctx context.Context, principal string, lifetime time.Duration) (string, error) {
	r := &putTokenRequest{Principal: principal, LifetimeMs: -1}
	if lifetime > 0 {
		r.LifetimeMs = lifetime.Milliseconds()
	}
	return l.putToken(ctx, r)
}

// RotateToken makes a token in the place of another, which is valid for the
// grace period still.
func (l *Log) RotateToken(ctx context.Context, tokenID string, grace time.Duration) (string, error) {
	return l.putToken(ctx, &putTokenRequest{Replaces: tokenID, GraceMs: grace.Milliseconds(), LifetimeMs: -1})
}

func (l *Log) putToken(ctx context.Context, r *putTokenRequest) (string, error) {
	token := newToken()
	r.TokenID, r.Digest, r.once = TokenID(token), tokenDigest(token), l.nextOnce()
	if err := l.call(ctx, "put_token", r, nil); err != nil {
		return "", err
	}
	return token, nil
}

// RevokeToken ends a token now.
func (l *Log) RevokeToken(ctx context.Context, tokenID string) error {
	return l.call(ctx, "revoke_tokens", &revokeTokensRequest{TokenID: tokenID, once: l.nextOnce()}, nil)
}

// RevokeTokensOf ends all tokens of a principal now.
func (l *Log) RevokeTokensOf(ctx context.Context, principal string) error {
	return l.call(ctx, "revoke_tokens", &revokeTokensRequest{Principal: principal, once: l.nextOnce()}, nil)
}

// RotateTicketKeys has the tickets of producer ids signed with a new key.
func (l *Log) RotateTicketKeys(ctx context.Context) error {
	return l.call(ctx, "rotate_ticket_keys", &rotateTicketKeysRequest{once: l.nextOnce()}, nil)
}

// AlterRules removes rules, then adds others.
func (l *Log) AlterRules(ctx context.Context, add, remove []Rule) error {
	return l.call(ctx, "alter_acls", &alterACLsRequest{Add: add, Remove: remove, once: l.nextOnce()}, nil)
}

// AlterQuotas sets the quotas of principals.
func (l *Log) AlterQuotas(ctx context.Context, quotas []Quota) error {
	return l.call(ctx, "alter_quotas", &alterQuotasRequest{Quotas: quotas, once: l.nextOnce()}, nil)
}

// Access tells who may do what.
func (l *Log) Access(ctx context.Context) (Access, error) {
	var answer Access
	err := l.call(ctx, "describe_access", &describeAccessRequest{}, &answer)
	return answer, err
}
