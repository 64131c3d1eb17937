package tidelog

import "testing"

func TestMayGoOn(t *testing.T) {
	tests := []struct {
		found, asked string
		given        []string
		want         bool
	}{
		{"ws://127.0.0.1:2", "ws://127.0.0.1:1", []string{"ws://127.0.0.1:1"}, true},
		{"ws://127.0.0.1:2", "ws://g1:1", []string{"ws://g1:1"}, false},
		{"ws://g2:1", "ws://127.0.0.1:1", []string{"ws://127.0.0.1:1"}, false},
		{"ws://g2:1", "ws://g1:1", []string{"ws://g1:1"}, true},
		{"ws://g2:1", "wss://g1:1", []string{"wss://g1:1"}, false},
		{"wss://g2:1", "wss://g1:1", []string{"wss://g1:1"}, true},
		{"wss://me@g2:1", "wss://g1:1", []string{"wss://g1:1"}, false},
		{"wss://g2:1/?x", "wss://g1:1", []string{"wss://g1:1"}, false},
		{"http://g2:1", "ws://g1:1", []string{"ws://g1:1"}, false},
		{"ws://g2:1/ä", "ws://g1:1", []string{"ws://g1:1"}, false},
	}
	for _, test := range tests {
		if got := mayGoOn(test.found, test.asked, test.given); got != test.want {
			t.Errorf("%+v: %v", test, got)
		}
	}
}
