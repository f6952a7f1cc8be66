package ringfence

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"time"
)

// The formats that every client may depend on.
const (
	sandboxIDLength  = 20
	sandboxIDLetters = "abcdefghijklmnopqrstuvwxyz0123456789"

	// APIKeyPrefix starts every key that Ringfence makes.
	APIKeyPrefix = "rf_"
	// apiKeyAlias is another spelling of the same key, for SDKs that insist on it.
	apiKeyAlias = "e2b_"

	tokenBytes = 32
)

// NewSandboxID returns a fresh id: 20 of [a-z0-9], 103 bits from the system's
// random source.
func NewSandboxID() string {
	id := make([]byte, 0, sandboxIDLength)
	var buf [32]byte
	for len(id) < sandboxIDLength {
		rand.Read(buf[:]) // never fails since Go 1.24
		for _, b := range buf {
			// 252 is the largest multiple of 36 in a byte: no letter is likelier.
			if b < 252 && len(id) < sandboxIDLength {
				id = append(id, sandboxIDLetters[int(b)%len(sandboxIDLetters)])
			}
		}
	}
	return string(id)
}

// ValidSandboxID reports whether id is spelled as a sandbox id.
func ValidSandboxID(id string) bool {
	if len(id) != sandboxIDLength {
		return false
	}
	for i := range len(id) {
		c := id[i]
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return false
		}
	}
	return true
}

// NewToken returns a fresh sandbox access token: 64 lower-case hex digits.
func NewToken() string {
	var b [tokenBytes]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

// ValidToken reports whether token is spelled as a sandbox access token.
func ValidToken(token string) bool {
	if len(token) != 2*tokenBytes {
		return false
	}
	for i := range len(token) {
		if c := token[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

// NewAPIKey returns a fresh API key, rf_ and 64 hex digits.
func NewAPIKey() string { return APIKeyPrefix + NewToken() }

// NormalizeAPIKey returns the canonical spelling of key, and whether it is one:
// rf_<hex>, or e2b_<hex> as another spelling of it; 32 to 128 hex digits.
func NormalizeAPIKey(key string) (string, bool) {
	digits, ok := strings.CutPrefix(key, APIKeyPrefix)
	if !ok {
		if digits, ok = strings.CutPrefix(key, apiKeyAlias); !ok {
			return "", false
		}
	}
	digits = strings.ToLower(digits)
	if len(digits) < 32 || len(digits) > 128 || len(digits)%2 != 0 {
		return "", false
	}
	if _, err := hex.DecodeString(digits); err != nil {
		return "", false
	}
	return APIKeyPrefix + digits, true
}

// HashSecret returns what is stored of a key or token. Both are 256 random bits,
// so a fast hash is enough.
func HashSecret(secret string) [32]byte { return sha256.Sum256([]byte(secret)) }

// TimeLayout is RFC 3339 in UTC with exactly six digits of a second.
const TimeLayout = "2006-01-02T15:04:05.000000Z"

// FormatTime spells t as every time on the wire is spelled; "" for the zero time.
func FormatTime(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(TimeLayout)
}
