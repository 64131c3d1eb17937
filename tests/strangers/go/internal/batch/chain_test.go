package batch

import (
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/crypto/blake2b"
)

// chainedHeader is the header of a batch as the hash chain has it: that of a
// sparse batch is the one before compaction.
func chainedHeader(data []byte) []byte {
	header := slices.Clone(data[:HeaderSize])
	if data[19] == sparseHeaderSize {
		copy(header[12:16], data[64:68]) // crc32c
		copy(header[20:24], data[68:72]) // batch_length
		copy(header[60:64], data[72:76]) // body_length
		copy(header[24:26], data[76:78]) // attributes
		header[19] = HeaderSize
	}
	return header
}

func TestHashChain(t *testing.T) {
	var vectors struct {
		Empty hexBytes `json:"empty"`
		Log   []struct {
			Hex   hexBytes `json:"hex"`
			Chain string   `json:"chain"`
		} `json:"log"`
	}
	data, err := os.ReadFile(filepath.Join(vectorFolder(), "hash-chain.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &vectors); err != nil {
		t.Fatal(err)
	}
	chain := []byte(vectors.Empty)
	for i, entry := range vectors.Log {
		hash, err := blake2b.New(16, nil)
		if err != nil {
			t.Fatal(err)
		}
		hash.Write(chain)
		hash.Write(chainedHeader(entry.Hex))
		chain = hash.Sum(nil)
		if got := hex.EncodeToString(chain); got != entry.Chain {
			t.Errorf("after batch %d the chain is %s instead of %s", i, got, entry.Chain)
		}
	}
}
